"""Seeds, threads, device and precision of a process."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

import lightning as L
import torch

from oar_lightning.common.config_check import ConfigError
from oar_lightning.policy.casting import MIXED, precision_name

log = logging.getLogger(__name__)


def seed_everything(seed: int) -> None:
    L.seed_everything(seed, workers=True, verbose=False)


def set_threads(threads: int | None) -> None:
    """Let torch use so many threads; None: its own choice.

    `torch.set_num_threads` also keeps MKL from using fewer threads where its products are small or run in parallel already:
    attention of few queries then takes about twice as long. So it is called only where the number differs; the
    command sets it in the environment before torch is imported.
    """
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # otherwise Lightning's launcher sets it for several ranks
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def choose_device(accelerator: str) -> torch.device:
    """The device of a task without a Trainer: a GPU where `trainer.accelerator` asks for one and it exists, else the CPU.

    Raises:
        ConfigError: for another accelerator.
    """
    if accelerator == "cpu":
        return torch.device("cpu")
    if accelerator not in ("gpu", "cuda", "auto"):
        raise ConfigError(
            f"trainer.accelerator={accelerator}: this task runs on cpu or gpu; auto takes a GPU where there is one"
        )
    if torch.cuda.is_available():
        return torch.device("cuda")
    if accelerator != "auto":
        log.warning("trainer.accelerator=%s: there is no GPU here, so this runs on the CPU", accelerator)
    return torch.device("cpu")


def mixed_precision(precision: object, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Autocast as a Trainer does it: for `bf16-mixed` and `16-mixed`. Others cast the weights: see `load_policy`."""
    dtype = MIXED.get(precision_name(precision))
    if dtype is torch.float16 and device.type == "cpu":  # as a Trainer's
        raise ConfigError(
            f"trainer.precision={precision}: a CPU computes in bf16-mixed instead; set trainer.precision=bf16-mixed"
        )
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype, cache_enabled=False)
