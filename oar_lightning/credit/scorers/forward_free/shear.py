"""How far each span of a completion is from what the other outcome's completions wrote (SHEAR)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import PositiveFloat, PositiveInt, Rule, checked
from oar_lightning.credit.component import Region, group_advantages_of, region_mask
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.credit.scorers.forward_free.base import groups
from oar_lightning.credit.scorers.forward_free.span_distances import (
    Distance,
    Mmd,
    Spans,
    Wasserstein,
    median_squared_distance,
    nearest,
    transport_solver,
)
from oar_lightning.policy.language_model import evaluating, hidden_states
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens, TokenBudget
from oar_lightning.types import Rollouts

BLOCK = 1024
"""The most tokens of either side whose distances are known at once."""

EPSILON, ITERATIONS = 0.02, 100

OF_GROUP = Annotated[None, "one that suits the group's texts"]


@checked(
    "scorer",
    Rule(
        lambda width, stride: width is None or stride is None or stride <= width,
        "scorer.stride must be at most scorer.width, or tokens lie in no span, got stride={stride}, width={width}",
    ),
)
class Shear(Scorer):
    """I_t = the largest distance of the spans that hold token t, where a span's distance is that to the nearest span of the
    group's completions with the other outcome (SHEAR, arXiv 2604.23318): for gate=direct.

    Outcomes are told by the sign of the group advantage. Completions without an opposite, as in groups that are all right or
    all wrong, and those of advantage 0 keep the score 1.

    A token's state is the policy's final one from which it was predicted, as sampling leaves it. Where it left none (see
    `Rollouts.prediction_states`), one forward pass without gradient reads it, group by group. Beside a group's states memory
    does not grow with the length of the texts.

    `mmd` is the discrepancy under a Gaussian kernel whose variance is the group's median squared distance. `wasserstein` is
    the paper's main choice, in units of the group's mean norm. From accounts of the paper: spans, nearest opposite span,
    largest over spans, mean norm, 100 and 25. Ours: which state is a token's, where the last span ends, `epsilon` and
    `iterations`, the discrepancy's bandwidth and table, smaller spans in short texts. Weights do not keep a completion's mass;
    the order of tokens inside a span does not count.

    Args:
        width: tokens of a span. None: 100, or an eighth of the group's longest completion where that is less, at least 8.
        stride: tokens from one span's beginning to the next one's. None: a quarter of `width`.
        distance: see above; `wasserstein` needs the extra `transport`.
        epsilon: weight of the entropy of `wasserstein`, in mean norms.
        iterations: Sinkhorn iterations of `wasserstein`.
        token_budget: padded tokens of one pass where no states are kept, or `auto`. Half of it, and at most 1024, bounds the
            tokens of either side in a block of distances, but for a span that is longer. Does not change the numbers.
        region: the tokens that are scored, and have spans.

    Raises:
        ImportError: for `wasserstein` where its package is not installed.
    """

    reads_groups = True

    def __init__(
        self,
        width: PositiveInt | OF_GROUP = None,
        stride: PositiveInt | OF_GROUP = None,
        distance: Literal["mmd", "wasserstein"] = "mmd",
        epsilon: PositiveFloat = EPSILON,
        iterations: PositiveInt = ITERATIONS,
        token_budget: SomeTokens = PASS_TOKENS,
        region: Region = "response",
    ) -> None:
        self.covers = region
        self.width = width
        self.stride = stride
        self.distance, self.epsilon, self.iterations = distance, epsilon, iterations
        self.solver = transport_solver() if distance == "wasserstein" else None
        self.token_budget = TokenBudget("scorer.token_budget", token_budget, PASS_TOKENS)

    @property
    def idle(self) -> Mapping[str, str]:
        if self.distance == "wasserstein":
            return {}
        usual = {"epsilon": EPSILON, "iterations": ITERATIONS}
        chosen = [key for key, value in usual.items() if getattr(self, key) != value]
        return {f"{key}={getattr(self, key):g}": f"scorer.distance={self.distance}" for key in chosen}

    @torch.no_grad()
    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        signs = group_advantages_of(rollouts).sign()
        mask = region_mask(rollouts, self.covers)
        out, read = mask.float(), 0
        for rows in groups(mask, rollouts.group_size):
            inside = mask[rows]
            has_tokens = inside.any(1)
            right, wrong = ((signs[rows] * side > 0) & has_tokens for side in (1, -1))
            if not (right.any() and wrong.any()):
                continue
            if rollouts.prediction_states is None:
                read += len(inside)
            weights = self._weights(self._states(model, rollouts, rows, inside), right, wrong)
            out = out.to(torch.promote_types(out.dtype, weights[0].dtype))
            for row, of_row in zip(range(rows.start, rows.stop), weights, strict=True):
                out[row, mask[row]] = of_row.to(out.dtype)
        self.metrics = {"forward_equivalents": read / len(mask)}
        return out

    def _states(self, model: Any, rollouts: Rollouts, rows: slice, inside: Bool[Tensor, "G S"]) -> list[Float[Tensor, "_ H"]]:
        """The state of each token in the region, of each of a group's rows."""
        if rollouts.prediction_states is not None:
            return [states[there] for states, there in zip(rollouts.prediction_states[rows], inside, strict=True)]
        found: dict[int, Tensor] = {}

        def read(chunk: list[int]) -> list[Tensor]:
            index = torch.tensor(chunk, device=inside.device)
            used = rollouts.columns(index + rows.start)
            ids, attention = (x[rows][index][:, used] for x in (rollouts.token_ids, rollouts.attention_mask))
            hidden = hidden_states(model, attention, ids)
            return [hidden[i, inside[row, used].nonzero().flatten() - 1] for i, row in enumerate(chunk)]

        with evaluating(model):
            for chunk, states in self.token_budget.run_in_chunks(rollouts.attention_mask[rows].sum(1).tolist(), read):
                found.update(zip(chunk, states, strict=True))
        return [found[row] for row in range(len(inside))]

    def _weights(
        self, texts: Sequence[Float[Tensor, "_ H"]], right: Bool[Tensor, " G"], wrong: Bool[Tensor, " G"]
    ) -> list[Float[Tensor, " _"]]:
        """The scores of each text's tokens; float32 unless the states are float64."""
        longest = max(map(len, texts))
        width = self.width or min(100, max(8, longest // 8))
        stride = min(width, self.stride or max(1, width // 4))
        sides = [side.nonzero().flatten().tolist() for side in (right, wrong)]
        spans = [spans_of([texts[row] for row in side], width, stride) for side in sides]
        most = BLOCK if self.token_budget.tokens is None else min(BLOCK, self.token_budget.tokens // 2)
        found = nearest(spans[0], spans[1], self._distance(texts), most)
        out = [text.new_ones(len(text), dtype=torch.promote_types(text.dtype, torch.float32)) for text in texts]
        for side, distances in zip(sides, found, strict=True):
            counts = [span_count(len(texts[row]), width, stride) for row in side]
            for row, of_row in zip(side, distances.split(counts), strict=True):
                out[row] = largest_over_spans(of_row, len(texts[row]), width, stride).to(out[row].dtype)
        return out

    def _distance(self, texts: Sequence[Float[Tensor, "_ H"]]) -> Distance:
        if self.solver is None:
            return Mmd(median_squared_distance(texts))
        norms = [text.norm(dim=1, dtype=torch.float64) for text in texts]
        scale = torch.cat(norms).mean().clamp(min=torch.finfo(torch.float64).tiny)
        return Wasserstein(scale, self.epsilon, self.iterations, self.solver)


def span_count(length: int, width: int, stride: int) -> int:
    """How many spans cover a text; the last one ends with it."""
    return 1 + max(0, -(-(length - width) // stride))


def spans_of(texts: Sequence[Float[Tensor, "_ H"]], width: int, stride: int) -> Spans:
    """The spans of some texts, none of them empty."""
    starts = [0, *itertools.accumulate(map(len, texts))]
    begins, ends = [], []
    for start, text in zip(starts, texts, strict=False):
        of_text = [start + k * stride for k in range(span_count(len(text), width, stride))]
        begins += of_text
        ends += [min(begin + width, start + len(text)) for begin in of_text]
    states = torch.cat(list(texts))
    return Spans(states, *(torch.tensor(x, device=states.device) for x in (begins, ends)))


def largest_over_spans(distances: Float[Tensor, " K"], length: int, width: int, stride: int) -> Float[Tensor, " T"]:
    """For each token the largest distance of the spans that hold it."""
    token = torch.arange(length, device=distances.device)[:, None]
    last = (token // stride).clamp(max=len(distances) - 1)  # the last span that begins at or before the token
    span = last - torch.arange(-(-width // stride), device=distances.device)
    holds = (span >= 0) & (token < span * stride + width)
    return distances[span.clamp(min=0)].masked_fill(~holds, -torch.inf).amax(1)
