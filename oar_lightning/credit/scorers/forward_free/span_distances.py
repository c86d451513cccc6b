"""How far spans of some texts are from those of others, by the hidden states of their tokens; a bounded block at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

EQUAL = 1e-13
"""A squared distance below this share of the squared norms is rounding, and is 0."""

NO_DISCREPANCY = 1e-12
"""A squared discrepancy of kernels, which are at most 1, that is rounding of their sums, and is 0."""

OUT_OF_REACH = 1e3
"""Costs in weights of the entropy that nothing is moved over: exp(-1000) is 0 in float64."""

SAMPLED = 512
"""Tokens of a group whose pairs give the median distance."""


class Spans(NamedTuple):
    """Span k is ``states[begins[k] : ends[k]]``, of texts one after the other. No span begins or ends before an earlier one."""

    states: Float[Tensor, "n H"]
    begins: Int[Tensor, " K"]
    ends: Int[Tensor, " K"]

    @property
    def sizes(self) -> Int[Tensor, " K"]:
        return self.ends - self.begins

    def blocks(self, most: int) -> list[tuple[slice, Spans]]:
        """Consecutive spans that have at most so many tokens together, at least one; and which they are."""
        begins, ends = self.begins.tolist(), self.ends.tolist()
        first, found = 0, []
        for k in range(1, len(begins) + 1):
            if k == len(begins) or ends[k] - begins[first] > most:
                at, start = slice(first, k), begins[first]
                found.append((at, Spans(self.states[start : ends[k - 1]], self.begins[at] - start, self.ends[at] - start)))
                first = k
        return found


@runtime_checkable
class Distance(Protocol):
    """A distance of two spans."""

    def own(self, spans: Spans) -> Float[Tensor, " K"]:
        """What each span brings to all of its distances."""
        ...

    def between(self, x: Spans, y: Spans, own_x: Float[Tensor, " K"], own_y: Float[Tensor, " L"]) -> Float[Tensor, "K L"]: ...


def nearest(x: Spans, y: Spans, distance: Distance, most: int) -> tuple[Float[Tensor, " K"], Float[Tensor, " L"]]:
    """The distance from each span of x to the nearest one of y, and the other way round.

    A block has at most `most` tokens of either side, so that memory does not grow with the texts.
    """
    of_x, of_y = (spans.states.new_full((len(spans.begins),), torch.inf, dtype=torch.float64) for spans in (x, y))
    others = [(at, part, distance.own(part)) for at, part in y.blocks(most)]
    for at_x, part in x.blocks(most):
        own = distance.own(part)
        for at_y, other, others_own in others:
            found = distance.between(part, other, own, others_own)
            of_x[at_x] = torch.minimum(of_x[at_x], found.amin(1))
            of_y[at_y] = torch.minimum(of_y[at_y], found.amin(0))
    return of_x, of_y


@dataclass(frozen=True)
class Mmd:
    """Maximum mean discrepancy sqrt(mean k(x, x') + mean k(y, y') - 2 mean k(x, y)), k = exp(-||x - y||^2 / (2 variance)); in
    [0, sqrt 2]."""

    variance: Float[Tensor, ""]

    def own(self, spans: Spans) -> Float[Tensor, " K"]:
        return self._means(spans, spans).diagonal()

    def between(self, x: Spans, y: Spans, own_x: Float[Tensor, " K"], own_y: Float[Tensor, " L"]) -> Float[Tensor, "K L"]:
        squared = own_x[:, None] + own_y - 2 * self._means(x, y)
        return squared.masked_fill(squared < NO_DISCREPANCY, 0.0).sqrt()

    def _means(self, x: Spans, y: Spans) -> Float[Tensor, "K L"]:
        return box_means(squared_distances(x.states, y.states).div_(-2 * self.variance).exp_(), x, y)


@dataclass(frozen=True)
class Wasserstein:
    """What it costs to move one span's states onto the other's over Euclidean distances, in units of `scale`, by the plan that
    an entropy of weight `epsilon` blurs.

    Args:
        scale: the length that counts as 1.
        epsilon: weight of the plan's entropy, in the same unit.
        iterations: of Sinkhorn; a fixed number, so that results do not depend on what is solved at once.
        solve: solves a batch of transport problems (see `transport_solver`).
    """

    scale: Float[Tensor, ""]
    epsilon: float
    iterations: int
    solve: Callable[..., Any]

    def own(self, spans: Spans) -> Float[Tensor, " K"]:
        return spans.states.new_zeros(len(spans.begins), dtype=torch.float64)

    def between(self, x: Spans, y: Spans, own_x: Float[Tensor, " K"], own_y: Float[Tensor, " L"]) -> Float[Tensor, "K L"]:
        distances = squared_distances(x.states, y.states).sqrt_() / self.scale
        (rows, mass_x), (columns, mass_y) = _padded(x), _padded(y)
        pairs = torch.cartesian_prod(*(torch.arange(len(mass), device=mass.device) for mass in (mass_x, mass_y)))
        # the first iteration gives every column a share, those without mass too: they have to be out of reach
        beyond = distances.max() + OUT_OF_REACH * self.epsilon
        at_once = max(1, distances.numel() // (rows.shape[1] * columns.shape[1]))  # costs no larger than the block
        found = []
        for i, j in (part.unbind(1) for part in pairs.split(at_once)):
            costs = distances[rows[i][:, :, None], columns[j][:, None, :]].where(mass_y[j][:, None, :] > 0, beyond)
            solved = self.solve(
                costs,
                self.epsilon,
                mass_x[i],
                mass_y[j],
                max_iter=self.iterations,
                tol=0.0,
                method="log_sinkhorn",
                grad="detach",
            )
            found.append(solved.value_linear)
        return torch.cat(found).view(len(mass_x), len(mass_y))


def transport_solver() -> Callable[..., Any]:
    """POT's solver of batches.

    Raises:
        ImportError: with the remedy, where it is not installed.
    """
    try:
        from ot.batch import solve_batch
    except ImportError as error:
        raise ImportError(
            "scorer.distance=wasserstein needs the optional extra: pip install -e '.[transport]'; "
            "scorer.distance=mmd needs none"
        ) from error
    return solve_batch


def _padded(spans: Spans) -> tuple[Int[Tensor, "K w"], Float[Tensor, "K w"]]:
    """Each span's tokens, and their equal masses; tokens beyond a span's end have none."""
    offset = torch.arange(int(spans.sizes.max()), device=spans.begins.device)
    inside = offset < spans.sizes[:, None]
    tokens = (spans.begins[:, None] + offset).clamp(max=len(spans.states) - 1)
    return tokens, inside / spans.sizes[:, None].double()


def squared_distances(x: Float[Tensor, "n H"], y: Float[Tensor, "m H"]) -> Float[Tensor, "n m"]:
    """||x_i - y_j||^2 in float64, exactly 0 for equal vectors: products of lower precision leave too little of what is near."""
    x, y = x.double(), y.double()
    norms = x.square().sum(1)[:, None] + y.square().sum(1)
    squared = torch.addmm(norms, x, y.T, alpha=-2)
    return squared.masked_fill_(squared <= EQUAL * norms, 0.0)


def box_means(values: Float[Tensor, "n m"], rows: Spans, columns: Spans) -> Float[Tensor, "K L"]:
    """The mean of the box of each pair of spans, by a summed-area table: running sums along one side after the other, whose
    rounding grows with the sides and not with the area."""
    sums = _span_sums(_span_sums(values, rows).T, columns).T
    return sums / (rows.sizes[:, None] * columns.sizes)


def _span_sums(values: Float[Tensor, "n m"], spans: Spans) -> Float[Tensor, "K m"]:
    total = torch.nn.functional.pad(values.cumsum(0), (0, 0, 1, 0))
    return total[spans.ends] - total[spans.begins]


def median_squared_distance(texts: Sequence[Float[Tensor, "_ H"]]) -> Float[Tensor, ""]:
    """Of all pairs of tokens of a group; in long texts of tokens at even distances. Of mostly equal states, the mean."""
    share = max(1, SAMPLED // len(texts))
    sampled = torch.cat([text[torch.arange(n := min(len(text), share)) * len(text) // max(1, n)] for text in texts])
    first, second = torch.triu_indices(len(sampled), len(sampled), 1, device=sampled.device)
    squared = squared_distances(sampled, sampled)[first, second]
    middle = squared.median()
    return torch.where(middle > 0, middle, squared.mean()).clamp(min=torch.finfo(squared.dtype).tiny)
