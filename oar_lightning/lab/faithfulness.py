"""lab.faithfulness: whether the outcome depends on the tokens that an estimator ranks first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from oar_lightning.common.activity import activity
from oar_lightning.common.ranges import NonNegativeInt, PositiveInt, checked
from oar_lightning.credit.component import Continuations
from oar_lightning.credit.scorers.base import scorable_rows
from oar_lightning.credit.scorers.oar_p.fills import FILLS
from oar_lightning.lab.kept import KeptOutcome
from oar_lightning.lab.removal import (
    KeptReward,
    OwnAnswer,
    RemovalConfig,
    Removals,
    direct_removal,
    infidelity,
    normalized,
    total_removal,
    toward_outcome,
)
from oar_lightning.lab.removal.orders import FRACTIONS, RISING, SOME_FILLS
from oar_lightning.lab.store import Store
from oar_lightning.lab.types import Estimate, Measure, Studied
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens, TokenBudget

REFERENCES = ("random", "oracle")
"""The estimators that are 0 and 1 of a normalised measure, where they are there."""


@checked("lab.faithfulness", SOME_FILLS, RISING)
@dataclass(frozen=True)
class Faithfulness:
    """Tokens are replaced, those that rank first before the others.

    Args:
        fills: what replaces a token: `pad`, `mean_embedding`, `random_token`, `model_sample` (see `OarP`).
        fractions: of a completion's reasoning tokens, rounded up, over which comprehensiveness and sufficiency are averaged.
        sets: random sets of each completion for infidelity; 0 leaves it out.
        completions: the most completions for effects on the reward, which are sampled: evenly spaced ones of those with a gold
            answer; 0 leaves them out.
        continuations: of each prefix there.
        reward: measure direct effects on the reward, too; they take two more sets of continuations for each fraction.
        token_budget: padded tokens of one pass, or `auto`; bounds memory.
    """

    fills: Sequence[str] = tuple(FILLS)
    fractions: Sequence[float] = FRACTIONS
    sets: NonNegativeInt = 32
    completions: NonNegativeInt = 32
    continuations: PositiveInt = 4
    reward: bool = False
    token_budget: SomeTokens = PASS_TOKENS

    def __call__(
        self, model: Any, studied: Studied, estimates: Sequence[Estimate], continuations: Continuations, store: Store, seed: int
    ) -> Removals:
        """The measures and curves of all estimates. Outcomes that the store holds are not computed again."""
        rollouts, budget = studied.rollouts, TokenBudget("lab.faithfulness.token_budget", self.token_budget, PASS_TOKENS)
        advantages = rollouts.advantages
        assert advantages is not None
        scores = {e.name: toward_outcome(e.scores, e.signed, advantages) for e in estimates}
        answer = KeptOutcome(OwnAnswer(model, rollouts, budget, seed), rollouts, store, f"own answer {seed}")
        rows = chosen_rows(studied, self.completions)
        reward = KeptReward(model, rollouts, continuations, budget, self.continuations, seed)
        found = Removals([], [])
        if not scores:
            return found
        with activity("removal", len(self.fills)) as advance:
            for fill in (name for name in FILLS if name in self.fills):
                config = RemovalConfig((fill,), self.fractions, seed)
                parts = [direct_removal(answer, rollouts, scores, config)]
                if self.sets:
                    parts.append(Removals(infidelity(answer, rollouts, scores, config, self.sets), []))
                if len(rows):
                    parts.append(total_removal(reward, rollouts, scores, config, rows))
                if len(rows) and self.reward:
                    parts.append(direct_removal(reward, rollouts, scores, config, "direct_reward", "probability", rows))
                for part in parts:
                    found.measures.extend(part.measures)
                    found.curves.extend(part.curves)
                advance(1)
        return Removals(found.measures + _normalized(found, studied.problem), found.curves)


def _normalized(found: Removals, problem: Sequence[int]) -> list[Measure]:
    """Comprehensiveness and sufficiency on the scale from random to oracle, where both are there."""
    measures = [m for m in found.measures if m.key.rpartition(".")[2] in ("comprehensiveness", "sufficiency")]
    return [normalized(m, problem, *REFERENCES) for m in measures if set(REFERENCES) <= set(m.values)]


def chosen_rows(studied: Studied, most: int) -> Int[Tensor, " n"]:
    """At most so many evenly spaced rows of those with reasoning, an answer and a verdict."""
    rows = [row for row in scorable_rows(studied.rollouts).tolist() if studied.correct[row] is not None]
    count = min(most, len(rows))
    chosen = [rows[i * len(rows) // count] for i in range(count)]
    return torch.tensor(chosen, dtype=torch.long, device=studied.rollouts.token_ids.device)
