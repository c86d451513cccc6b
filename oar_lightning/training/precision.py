"""What a trainer's `precision` is to mean here: the model's passes and weights, nothing else."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch

from oar_lightning.common.config_check import ConfigError
from oar_lightning.distributed.strategies import adapt
from oar_lightning.policy.casting import TRUE, precision_name

log = logging.getLogger(__name__)


def check_trained(model: Any, trainer: L.Trainer, dtype: str) -> None:
    """Hold the weights that an optimizer is to move against what it can; `dtype`: as `policy.dtype` has it.

    Raises:
        ConfigError: for float16, in which the eps of Adam and AdamW is 0, so that a gradient of 0 makes a weight NaN.
    """
    cast = TRUE.get(precision_name(trainer.precision))
    trained = {cast or p.dtype for p in model.parameters() if p.requires_grad}
    if torch.bfloat16 in trained and not adapt(trainer).moves_float32:
        log.warning(
            "the weights that are trained are bfloat16, of which steps of less than a 256th of a weight move nothing: at "
            "optimizer.lr=1e-6 next to none moves; policy.dtype=float32 with trainer.precision=bf16-mixed keeps them"
        )
    if torch.float16 not in trained or adapt(trainer).moves_float32:
        return
    setting, remedy = f"policy.dtype={dtype}", "policy.dtype=bfloat16 or policy.dtype=float32"
    if cast is not None:
        setting, remedy = f"trainer.precision={trainer.precision}", "trainer.precision=bf16-mixed, bf16-true or 32-true"
    raise ConfigError(
        f"{setting}: the weights that are trained would be float16, in which AdamW's eps is 0 and they are NaN after a step; "
        f"set {remedy}"
    )


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
