"""What is kept of many batches' gradients: sums, from which all statistics follow and which can be added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class GradientSums:
    """Sums over batches of the gradients g of M estimators, coordinate by coordinate.

    ``products[r, m]`` is the sum of g_m times the gradient of ``references[r]`` in the same batch. Means over *different*
    batches follow from both: of n (n - 1) ordered pairs, the n of a batch with itself are taken out.
    """

    names: tuple[str, ...]
    references: tuple[str, ...]
    batches: int
    total: Float[Tensor, "M P"]
    squares: Float[Tensor, "M P"]
    products: Float[Tensor, "R M P"]

    @classmethod
    def of(cls, names: Sequence[str], gradients: Float[Tensor, "M P"], references: Sequence[str] = ()) -> GradientSums:
        """One batch; `references` are among the names."""
        index = [list(names).index(name) for name in references]
        products = gradients[index][:, None] * gradients
        return cls(tuple(names), tuple(references), 1, gradients, gradients.square(), products)

    def __add__(self, other: GradientSums) -> GradientSums:
        assert (self.names, self.references) == (other.names, other.references), "sums of the same estimators"
        return GradientSums(
            self.names,
            self.references,
            self.batches + other.batches,
            self.total + other.total,
            self.squares + other.squares,
            self.products + other.products,
        )

    def select(self, names: Sequence[str], references: Sequence[str] = ()) -> GradientSums:
        """The sums of some of the estimators, in this order.

        Raises:
            KeyError: for a name that is not among them.
        """
        if missing := [n for n in names if n not in self.names] + [r for r in references if r not in self.references]:
            raise KeyError(f"no gradients of {', '.join(missing)}; there are those of {', '.join(self.names)}")
        chosen = [self.names.index(name) for name in names]
        of = [self.references.index(name) for name in references]
        products = self.products[of][:, chosen]
        return GradientSums(tuple(names), tuple(references), self.batches, self.total[chosen], self.squares[chosen], products)

    def cpu(self) -> GradientSums:
        moved = (x.cpu() for x in (self.total, self.squares, self.products))
        return GradientSums(self.names, self.references, self.batches, *moved)


def added(sums: Sequence[GradientSums]) -> GradientSums:
    """The sum of at least one."""
    total = sums[0]
    for other in sums[1:]:
        total = total + other
    return total
