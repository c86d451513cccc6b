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
from oar_lightning.training.slots import UpdatePlan

log = logging.getLogger(__name__)

BF16_PRODUCTS = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
"""What torch calls them on x86 and on ARM."""


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


def check_update_dtype(plan: UpdatePlan, precision: object) -> None:
    """Hold `update.dtype` against a trainer's precision.

    Raises:
        ConfigError: for a trainer that has a half precision of its own.
    """
    name = precision_name(precision)
    if plan.dtype is not None and name != "32-true":
        raise ConfigError(
            f"update.dtype={plan.dtype} changes passes of trainer.precision=32-true alone, and trainer.precision={name} says "
            "what all passes compute in; leave one of them out"
        )


def warn_of_slow_products(plan: UpdatePlan, device: torch.device) -> None:
    """Tell of a CPU that has no products of `update.dtype`."""
    known = getattr(torch.cpu, "get_capabilities", None)  # torch 2.11
    if plan.half and device.type == "cpu" and known and not any(map(known().get, BF16_PRODUCTS)):
        log.warning(
            "update.dtype=%s: this processor has no products of it (none of %s), and takes longer with them than with float32; "
            "set update.dtype=null",
            plan.dtype,
            ", ".join(BF16_PRODUCTS),
        )


def update_precision(plan: UpdatePlan, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A block for passes whose log-probabilities the loss reads."""
    return torch.autocast(device.type, torch.bfloat16) if plan.half else contextlib.nullcontext()


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
