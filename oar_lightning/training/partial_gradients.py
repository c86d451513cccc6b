"""Which gradients a backward pass that broke off has already added."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from torch.nn import Parameter


class PartialGradients:
    """For each row of a micro-batch, the parameters that still lack its gradient.

    A backward pass that runs out of memory has reached some parameters. Their gradients stay and must not be added twice.
    """

    def __init__(self, parameters: Sequence[Parameter], rows: int) -> None:
        self._missing = dict.fromkeys(range(rows), tuple(parameters))
        self._count = len(parameters)

    @contextlib.contextmanager
    def of(self, rows: Sequence[int]) -> Iterator[dict[str, tuple[Parameter, ...]] | None]:
        """A block for one backward pass over `rows`, which lack the gradients of the same parameters.

        Yields the arguments of `Tensor.backward` by which it leaves out the parameters that an earlier pass has reached; None
        where that has reached all, and broke off behind them.
        """
        missing = self._missing[rows[0]]
        reached: set[int] = set()
        hooks = [p.register_post_accumulate_grad_hook(lambda p: reached.add(id(p))) for p in missing]
        try:
            yield ({} if len(missing) == self._count else {"inputs": missing}) if missing else None
        finally:
            for hook in hooks:
                hook.remove()
            left = tuple(p for p in missing if id(p) not in reached)
            self._missing |= dict.fromkeys(rows, left)
