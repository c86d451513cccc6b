"""Runs the package's own code with weights and activations that have no values, and counts the bytes that it holds."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ops = torch.ops.aten
_INDEXING = (_ops.index.Tensor, _ops.index_put.default, _ops.index_put_.default)
_of_experts = getattr(_ops, "_grouped_mm", None)  # torch 2.8
_SAME = (_ops.allclose.default, _ops.equal.default)


@contextlib.contextmanager
def no_memory() -> Iterator[None]:
    """Inside the block new tensors have a shape, a dtype and a device, but no values."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


class MemoryCounter(TorchDispatchMode):
    """Counts the bytes of all live storages that operations inside the block have allocated.

    Operations on tensors with values are computed; an operation on a tensor of `no_memory` gives another without values. Ids
    and masks thus have values and decide what runs, while weights and activations have none. A value that does not exist but
    is needed (`item`, `nonzero`, whether two tensors are equal) is taken as 1, or true.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        out = _run(func, args, kwargs or {}, any(map(_is_empty, inputs)))
        storages = {x.untyped_storage()._cdata for x in inputs}
        for tensor in (out,) if isinstance(out, Tensor) else tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in storages:
                self.count(tensor.untyped_storage())
        return out

    def count(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until it is freed."""
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, storage.nbytes())

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def _run(func: Any, args: Any, kwargs: Any, empty: bool) -> Any:
    if empty and func in _SAME:
        return True
    if empty and func is _ops._local_scalar_dense.default:
        return 1.0 if args[0].is_floating_point() else 1
    if empty and func is _ops.nonzero.default:
        return torch.ones(args[0].shape, dtype=torch.bool).nonzero()
    if (
        empty and _of_experts is not None and func is _of_experts.default
    ):  # of experts; what has no values is multiplied in bfloat16 alone
        first, second, *rest = args
        return func(first.bfloat16(), second.bfloat16(), *rest, **kwargs).to(first.dtype)
    if empty and func in _INDEXING:
        args = (args[0], _positions(args[1]), *args[2:])
    return func(*args, **kwargs)


def _is_empty(x: Tensor) -> bool:
    return isinstance(x, FakeTensor)


def _positions(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Indices with each mask that has values replaced by the positions of its True entries, which gives the result's shape."""
    positions: list[Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype == torch.bool and not _is_empty(index):
            positions += index.nonzero(as_tuple=True)
        else:
            positions.append(index)
    return positions


def peak_bytes(work: Callable[[], Any]) -> int:
    """The peak of the bytes of the tensors that `work` allocates."""
    with MemoryCounter() as counter:
        work()
    return counter.peak
