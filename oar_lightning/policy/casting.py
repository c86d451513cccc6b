"""Models in another precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Lightning's name of a precision -> the dtype of the model's passes."""

TRUE = {"32-true": None, "bf16-true": torch.bfloat16, "16-true": torch.float16, "64-true": torch.float64}
"""Lightning's name of a precision -> the dtype that the model is cast to; None: it stays as it was loaded."""

_ALIASES = {"None": "32-true", "32": "32-true", "64": "64-true", "16": "16-mixed", "bf16": "bf16-mixed"}


def precision_name(precision: object) -> str:
    """A Trainer's `precision` by one name: Lightning takes `bf16` for `bf16-mixed`, and nothing for `32-true`."""
    return _ALIASES.get(str(precision), str(precision))


def cast(model: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """The model on a device and, where one is given, in a dtype, as where it is loaded so."""
    with unsaved_buffers_kept(model):
        return model.to(device, dtype)


@contextlib.contextmanager
def unsaved_buffers_kept(model: nn.Module) -> Iterator[None]:
    """A block that casts the model: buffers that are not saved with it keep their precision, as where a model is loaded so.

    They hold what is computed from the config, such as the frequencies of rotary positions. Rounded to bfloat16 these turn
    positions by 0.6 rad at a distance of 512 tokens (heads of 128 numbers, theta 1e6), which is another model than the one
    that is saved.
    """
    kept = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name in module._non_persistent_buffers_set and buffer.is_floating_point()
    ]
    yield
    for module, name, buffer in kept:
        cast = getattr(module, name)
        if cast.dtype != buffer.dtype:
            setattr(module, name, buffer.to(cast.device))
