"""Gradients of a backward pass that broke off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from torch.nn import Parameter


class PartialGradients:
    """Which parameters have their gradient of which rows: a backward pass that breaks off has reached some of them, and what
    it gave them counts."""

    def __init__(self, parameters: Sequence[Parameter], rows: int) -> None:
        self._missing = dict.fromkeys(range(rows), tuple(parameters))
        self._count = len(parameters)

    @contextlib.contextmanager
    def of(self, rows: Sequence[int]) -> Iterator[dict[str, tuple[Parameter, ...]]]:
        """A block that makes one backward pass for rows that share their history; gives the arguments for `Tensor.backward`
        with which it leaves out the parameters that an earlier one has reached."""
        missing = self._missing[rows[0]]
        reached: set[int] = set()
        hooks = [p.register_post_accumulate_grad_hook(lambda p: reached.add(id(p))) for p in missing]
        try:
            yield {} if len(missing) == self._count else {"inputs": missing}
        finally:
            for hook in hooks:
                hook.remove()
            left = tuple(p for p in missing if id(p) not in reached)
            self._missing |= dict.fromkeys(rows, left)
