"""What a trainer's `precision` is to mean here: the model's passes and weights, nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import lightning as L
import torch


@contextlib.contextmanager
def precision_of(trainer: L.Trainer) -> Iterator[None]:
    """A block for passes of the model outside of `training_step`, in the trainer's precision."""
    with trainer.precision_plugin.forward_context(), float32_by_default():
        yield


@contextlib.contextmanager
def float32_by_default() -> Iterator[None]:
    """A block, or a decorated function, in which new tensors are float32.

    With bf16-true Lightning makes every new tensor bfloat16: also the random numbers that tokens are drawn with, which then
    come in steps of 1/256, and rewards and losses.
    """
    former = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(former)
