"""Where a completion turned: the token from which greedy decoding comes to the completion's own reward, and no longer to that
of the greedy completion."""

from __future__ import annotations

import dataclasses
import operator
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.common.ranges import NonNegativeInt, PositiveFloat, checked
from oar_lightning.credit.component import Continuations, Tools, group_advantages_of
from oar_lightning.credit.predictions import read_states
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.credit.segments import TOKENS
from oar_lightning.objective.metric_sums import MetricSums
from oar_lightning.policy.language_model import evaluating, prediction_states
from oar_lightning.policy.lm_head import head_logits, rows_per_chunk
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Prefix, Rollouts


@checked("scorer")
class TurningPoint(Scorer):
    """I_t = 1 on one token of each completion that came to another reward than the greedy completion of its prompt, and where
    the others of its group took the same decision as greedy decoding; else 0.

    V(s) is the reward of the greedy continuation of a prefix s. Along a completion it can change only at a *deviation*, a token
    that was not the most probable one: before the first of them V is that of the prompt, after the last it is the completion's
    own reward R. A deviation's gap is log p(most probable token) - log p(token), nats. Each round continues one prefix of each
    completion, before the deviation that halves what is left by gaps and number, and keeps the half in which V turns to R.
    After the last round the turning point is the deviation with the largest gap of those that are left. In a wrong completion
    it is the token that lost it, as far as greedy decoding tells.

    With `siblings` the other side of a decision is scored, too (`mark_siblings`).

    The search by halves for the first error is that of OmegaPRM (arXiv 2406.06592), over steps and with values of sampled
    continuations. Greedy values, deviations and gaps are ours.

    Args:
        rounds: continuations of a completion; 0 takes the largest gap of all, and continues prompts alone.
        least: how far R is from V(prompt), in units of reward, in completions that are searched.
        siblings: whether completions that did not turn are scored at the decisions at which others of their group turned.
    """

    covers = "response"
    samples = 1

    def __init__(
        self,
        rounds: NonNegativeInt = 8,
        least: Annotated[PositiveFloat, "a difference of rewards"] = 0.5,
        siblings: bool = True,
    ) -> None:
        super().__init__()
        self.rounds, self.least, self.siblings = rounds, least, siblings
        self._continue: Continuations | None = None

    def use(self, tools: Tools) -> None:
        self._continue = tools.continuations

    def forecast(self, completions: int, tokens: int) -> str:
        return (
            f"continuations: at most {completions * self.rounds:,} and one for each prompt a step beside {completions:,} "
            f"completions (scorer.rounds={self.rounds}); credit/continuations and time/continuations_s tell what they were"
        )

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        started = time.perf_counter()
        size, rewards, advantages = rollouts.group_size, rollouts.rewards.tolist(), group_advantages_of(rollouts).tolist()
        groups = [row for row in range(0, len(rewards), size) if any(advantages[row : row + size])]
        starts = rollouts.response_mask.long().argmax(1).tolist()
        gaps = greedy_gaps(model, rollouts)
        searches = {row: s for group in groups for row in range(group, group + size) if (s := Search.over(gaps[row])).columns}
        tokens = sampled = 0

        def values_of(prefixes: list[Prefix]) -> list[float]:
            nonlocal tokens, sampled
            if not prefixes:
                return []
            assert self._continue is not None, "a run lends its tools before the first step"
            found = self._continue(model, rollouts, prefixes, 1, 0, greedy=True)
            tokens, sampled = tokens + found.tokens, sampled + found.sampled
            return found.rewards[:, 0].tolist()

        # most greedy completions are right: wrong ones are searched before that is known, which saves a round
        asked = [row for row, search in searches.items() if advantages[row] < 0 and self._goes_on(search)]
        values = values_of(
            [*(Prefix(row, starts[row]) for row in groups), *(Prefix(row, searches[row].column) for row in asked)]
        )
        of_prompt = {row: value for group, value in zip(groups, values, strict=False) for row in range(group, group + size)}
        searches = {row: s for row, s in searches.items() if abs(of_prompt[row] - rewards[row]) >= self.least}
        values = values[len(groups) :]
        while True:
            for row, value in zip(asked, values, strict=True):
                if row in searches:
                    turned = abs(value - rewards[row]) < abs(value - of_prompt[row])
                    searches[row] = searches[row].narrowed(turned)
            asked = [row for row, search in searches.items() if self._goes_on(search)]
            if not asked:
                break
            values = values_of([Prefix(row, searches[row].column) for row in asked])
        turns = {row: search.turning_point for row, search in searches.items()}
        scores = torch.zeros(rollouts.token_ids.shape, device=rollouts.token_ids.device)
        for row, column in turns.items():
            scores[row, column] = 1.0
        if self.siblings:
            for group in groups:
                rows = list(range(group, group + size))
                mark_siblings(model, rollouts, {row: turns[row] for row in rows if row in turns}, rows, scores)
        self.metrics = {
            "forward_equivalents": tokens / max(1, int(rollouts.attention_mask.sum())),
            "turned_frac": len(searches) / len(rollouts),
        }
        self.totals = MetricSums()
        self.totals.fold(operator.add, {"credit/continuations": float(sampled)})
        self.totals.fold(max, {"time/continuations_s": time.perf_counter() - started})
        return scores

    def _goes_on(self, search: Search) -> bool:
        return search.is_open and search.rounds < self.rounds


@dataclass(frozen=True)
class Search:
    """The deviations of a completion: their `columns`, and `sums` of the weights of the deviations before each and of all.

    A deviation weighs its gap and the mean gap, so that a search by halves of the weight is nearly one by halves of the number
    where gaps say nothing.

    The turning point is one of those from `low` on and before `high`.
    """

    columns: tuple[int, ...]
    sums: tuple[float, ...]
    low: int
    high: int
    rounds: int = 0

    @classmethod
    def over(cls, gaps: Float[Tensor, " S"]) -> Search:
        """All deviations of a completion, those of its tokens with a gap."""
        columns = gaps.nonzero().flatten()
        weights = gaps[columns] + gaps[columns].mean()
        sums = accumulate(weights.tolist(), initial=0.0)
        return cls(tuple(columns.tolist()), tuple(sums), 0, len(columns))

    @property
    def is_open(self) -> bool:
        return self.high - self.low > 1

    @property
    def _middle(self) -> int:
        half = (self.sums[self.low] + self.sums[self.high]) / 2
        return min(range(self.low + 1, self.high), key=lambda i: abs(self.sums[i] - half))

    @property
    def column(self) -> int:
        """That of the deviation whose prefix is continued next."""
        return self.columns[self._middle]

    def narrowed(self, turned: bool) -> Search:
        """After that continuation, which came to the completion's own reward or not."""
        low, high = (self.low, self._middle) if turned else (self._middle, self.high)
        return dataclasses.replace(self, low=low, high=high, rounds=self.rounds + 1)

    @property
    def turning_point(self) -> int:
        """The column of the largest gap among what is left."""
        return self.columns[max(range(self.low, self.high), key=lambda i: self.sums[i + 1] - self.sums[i])]


@torch.no_grad()
def mark_siblings(
    model: Any, rollouts: Rollouts, turns: Mapping[int, int], rows: list[int], scores: Float[Tensor, "B S"]
) -> None:
    """Score 1 where the completions of a group that did not turn took the decision at which another one turned.

    Of a completion's tokens that are the most probable one at a turning point, it is the one that was predicted from the state
    nearest (by its angle) to that of the turning point.
    """
    others = [row for row in rows if row not in turns]
    if not turns or not others:
        return
    states = rollouts.prediction_states
    if states is None:
        with evaluating(model):
            states = prediction_states(model, rollouts.attention_mask[rows], rollouts.token_ids[rows])
    else:
        states = states[rows]
    at = states[[row - rows[0] for row in turns], list(turns.values())]
    near = states[[row - rows[0] for row in others]]
    likely = head_logits(model, at).argmax(-1)
    same = (rollouts.token_ids[others] == likely[:, None, None]) & rollouts.response_mask[others]
    angle = torch.einsum("th,osh->tos", *(torch.nn.functional.normalize(x.float(), dim=-1) for x in (at, near)))
    place = angle.masked_fill(~same, -torch.inf).argmax(-1)
    turn, other = same.any(-1).nonzero(as_tuple=True)
    scores[torch.tensor(others, device=other.device)[other], place[turn, other]] = 1.0


def greedy_gaps(model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
    """log p(most probable token) - log p(token), nats, of the response's tokens; 0 elsewhere. From kept states or a pass."""
    budget = TokenBudget("scorer.greedy_gaps", TOKENS, TOKENS)
    return read_states(model, rollouts, rollouts.response_mask, budget, _gaps)[0]


def _gaps(model: Any, hidden: Float[Tensor, "n H"], targets: Int[Tensor, " n"]) -> Float[Tensor, "n 1"]:
    found = []
    for h, y in zip(
        *(x.split(rows_per_chunk(model.get_output_embeddings().weight.shape[0])) for x in (hidden, targets)), strict=True
    ):
        logits = head_logits(model, h)
        found.append(logits.amax(-1, keepdim=True) - logits.gather(-1, y[:, None]))
    return torch.cat(found)
