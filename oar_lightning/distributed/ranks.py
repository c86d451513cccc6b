"""What the processes of one training job ("ranks") tell each other. With a single process nothing is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


def rank() -> int:
    """This process's number among those that train together."""
    return dist.get_rank() if _several() else 0


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if _several() else 1


def all_gather(value: T) -> list[T]:
    """The `value` of every rank in their order. All have to call it; it is pickled, so it should be small and on the CPU."""
    if not _several():
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def interleaved(parts: Sequence[Sequence[T]]) -> list[T]:
    """The whole that was dealt out in turn: `parts[r]` is its `[r::len(parts)]`."""
    whole: list[Any] = [None] * sum(map(len, parts))
    for number, part in enumerate(parts):
        whole[number :: len(parts)] = part
    return whole


def share(key: str, count: int, among: int) -> int:
    """Each rank's part of `count` problems: a problem's whole group stays on one rank.

    Raises:
        ValueError: where they cannot be dealt out evenly.
    """
    if count % among:
        lower, higher = count // among * among, (count // among + 1) * among
        remedy = f"{lower} or {higher}" if lower else str(higher)
        raise ValueError(
            f"{key}={count} is a number for all ranks together and cannot be dealt out evenly to {among} of them; set {key} to "
            f"{remedy}, or trainer.devices (times trainer.num_nodes) to a divisor of {count}"
        )
    return count // among


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
