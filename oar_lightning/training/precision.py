"""What a trainer's `precision` is to mean here: the model's passes and weights, nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def passes_of(trainer: Any) -> Iterator[None]:
    """Around passes of the model outside of `training_step`."""
    with trainer.precision_plugin.forward_context(), full_by_default():
        yield


@contextlib.contextmanager
def full_by_default() -> Iterator[None]:
    """New tensors are float32 inside, as a decorator too: with bf16-true Lightning makes every new one bfloat16, among them
    random numbers that tokens are drawn with (then in steps of 1/256), rewards and losses."""
    former = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(former)
