"""Step advantages from Monte-Carlo values: how often the policy succeeds from where a completion has come to."""

from __future__ import annotations

import operator
import time
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import PositiveInt, Probability, checked
from oar_lightning.credit.component import Continuations, Tools
from oar_lightning.credit.predictions import passes, predictions
from oar_lightning.credit.scorers.steps import Steps, StepScorer
from oar_lightning.credit.segments import Segmenter, reasoning_or_all, segment_numbers
from oar_lightning.objective.metric_sums import MetricSums
from oar_lightning.policy.token_budget import unset_budget
from oar_lightning.types import Prefix, Rollouts


@checked("scorer")
class MonteCarlo(StepScorer):
    """A_k = V_{k+1} - V_k for the tokens of segment k, V_k = mean reward of `samples` continuations from before it.

    After the last segment the value is the completion's own reward R, so that the advantages of a completion's segments sum to
    R - V(prompt) (VinePPO, arXiv 2410.01679). Segments divide the reasoning; the rest of the response belongs to the last one.
    Equal prefixes, such as the prompt of a group, are sampled once. The standard deviation of one value is at most
    sqrt(V (1 - V) / samples) for rewards of 0 and 1. For gate=signed.

    Args:
        segments: divides a completion.
        samples: continuations of each prefix.
        most_segments: the values of later cuts are not estimated but taken to be R: the segment before the first of them gets
            R - V, the tokens behind it 0, as in VinePPO's code. None for no limit.
        from_first_cut: the tokens before the first cut get 0 and V(prompt) is not estimated (SPO, arXiv 2505.23564);
            the first token begins a segment anyway, so that a cut there is none.
        forced_above: tokens of a larger probability get 0 and leave the loss, its denominators included (SPO's probability
            mask); None for none.
        absolute: importance |A_k| in place of the advantage, for gates that read no sign.
        seed: of the draws.
    """

    covers = "response"

    def __init__(
        self,
        segments: Segmenter,
        samples: Annotated[PositiveInt, "the number of continuations of a prefix"] = 9,
        most_segments: PositiveInt | None = 25,
        from_first_cut: bool = False,
        forced_above: Probability | None = None,
        absolute: bool = False,
        seed: int = 0,
    ) -> None:
        self.signed = not absolute
        self.masks_loss = forced_above is not None
        self.reads_all_rows = self.signed or self.masks_loss  # importance alone leaves advantages of 0 as they are
        self.segments = segments
        self.samples = samples
        self.most_segments = most_segments
        self.from_first_cut = from_first_cut
        self.forced_above = forced_above
        self.seed = seed
        self._continue: Continuations | None = None

    def use(self, tools: Tools) -> None:
        self._continue = tools.continuations

    def forecast(self, completions: int, tokens: int) -> str:
        most = tokens if self.most_segments is None else min(tokens, self.most_segments)
        return (
            f"continuations: at most {completions * most * self.samples:,} a step beside {completions:,} completions "
            f"(scorer.samples={self.samples}, {most} segments a completion at most); with n segments of even length they are "
            f"{self.samples / 2:g} (n + 1) times the completions' tokens, {self.samples * 2.5:g} with 4; credit/continuations "
            "and time/continuations_s tell what they were"
        )

    def steps(self, model: Any, rollouts: Rollouts) -> Steps:
        starts, late = self.starts(model, rollouts)
        rows, columns = (x.tolist() for x in starts.nonzero(as_tuple=True))
        values = self.values(model, rollouts, [Prefix(r, c) for r, c in zip(rows, columns, strict=True)])
        self.metrics["segments"] = len(rows) / len(rollouts)
        self.metrics["forward_equivalents"] += self.segments.passes(rollouts)
        scores = self.advantages(rollouts, starts, values).masked_fill(late, 0.0)
        return Steps(scores, segment_numbers(starts, rollouts.response_mask & ~late))

    def of_tokens(self, model: Any, rollouts: Rollouts, scores: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        if self.forced_above is not None:
            budget = unset_budget("scorer.forced_above")
            logprobs = predictions(model, rollouts, rollouts.response_mask, budget).logprobs
            self.metrics["forward_equivalents"] += passes(rollouts)
            self.left_out = rollouts.response_mask & (logprobs.exp() > self.forced_above)
            scores = scores.masked_fill(self.left_out, 0.0)
        return scores if self.signed else scores.abs()

    def starts(self, model: Any, rollouts: Rollouts) -> tuple[Bool[Tensor, "B S"], Bool[Tensor, "B S"]]:
        """The first tokens of the segments whose values are estimated, and the tokens behind these segments."""
        cuts = self.segments(model, rollouts, reasoning_or_all(rollouts))
        number = cuts.long().cumsum(1)
        late = number > (number.shape[1] if self.most_segments is None else self.most_segments)
        starts = cuts & ~late
        return (starts & (number > 1) if self.from_first_cut else starts), late

    def values(self, model: Any, rollouts: Rollouts, prefixes: list[Prefix]) -> Float[Tensor, " n"]:
        """V of each prefix."""
        assert self._continue is not None, "a run lends its tools before the first step"
        started = time.perf_counter()
        found = self._continue(model, rollouts, prefixes, self.samples, self.seed + rollouts.step)
        self.metrics = {"forward_equivalents": found.tokens / max(1, int(rollouts.attention_mask.sum()))}
        self.totals = MetricSums()
        self.totals.fold(operator.add, {"credit/continuations": float(found.sampled)})
        self.totals.fold(max, {"time/continuations_s": time.perf_counter() - started})
        return found.rewards.nanmean(1)  # NaN: no reward applied to a continuation

    def advantages(self, rollouts: Rollouts, starts: Bool[Tensor, "B S"], values: Float[Tensor, " n"]) -> Float[Tensor, "B S"]:
        """The difference of the values at a segment's ends, on each of its tokens up to the end of the response."""
        rewards = rollouts.rewards.to(values)
        index = starts.flatten().long().cumsum(0).view_as(starts) - 1  # of the last start before each token, of any row
        row = torch.arange(len(starts), device=starts.device)[:, None]
        of_start = starts.nonzero()[:, 0]
        following = torch.cat([of_start[1:], of_start.new_full((1,), -1)])
        after = torch.cat([values[1:], values.new_zeros(1)])
        differences = torch.where(following == of_start, after, rewards[of_start]) - values
        if not len(values):
            return torch.zeros(starts.shape, device=starts.device)
        inside = rollouts.response_mask & (starts.long().cumsum(1) > 0) & (of_start[index.clamp(min=0)] == row)
        return differences[index.clamp(min=0)].masked_fill(~inside, 0.0)
