"""What the processes of one training job (ranks) tell each other. A single process sends nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

_alone: ContextVar[bool] = ContextVar("alone", default=False)


def rank() -> int:
    """The number of this process among those that train together, from 0."""
    return dist.get_rank() if _several() else 0


def world_size() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if _several() else 1


def all_gather(value: T) -> list[T]:
    """The `value` of every rank, in the order of ranks. All ranks have to call it.

    The value is pickled, so it should be small and on the CPU.
    """
    if not _several():
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def add_up(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over the ranks, the same bits on all of them. All ranks have to call it."""
    if _several():
        for tensor in tensors:
            dist.all_reduce(tensor)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """For work that one rank does while the others wait or do something else: inside, this rank is the only one."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def interleaved(parts: Sequence[Sequence[T]]) -> list[T]:
    """The inverse of dealing out in turn: the list whose `[r::len(parts)]` is `parts[r]`."""
    whole: list[Any] = [None] * sum(map(len, parts))
    for number, part in enumerate(parts):
        whole[number :: len(parts)] = part
    return whole


def per_rank(key: str, count: int, among: int) -> int:
    """How many of `count` problems each rank takes. All completions of a problem stay on one rank.

    Raises:
        ValueError: where `count` is not a multiple of the number of ranks.
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
    return not _alone.get() and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
