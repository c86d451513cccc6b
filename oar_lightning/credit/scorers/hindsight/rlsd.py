"""Weights by what a hint does to a token's probability (RLSD, SERL)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import checked
from oar_lightning.credit.component import Region
from oar_lightning.credit.hints import HINTS, OF_GROUPS, HintKind
from oar_lightning.credit.located import Locate, located
from oar_lightning.credit.scorers.hindsight.base import Hindsight, Hints
from oar_lightning.credit.teachers import Teacher
from oar_lightning.data.hints import TEMPLATE
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens
from oar_lightning.types import Rollouts


@checked("scorer")
class Rlsd(Hindsight):
    """w_t = exp(sign(A_i) D_t), D_t = log pi(y_t | x, r, y_<t) - log pi(y_t | x, y_<t) with a hint r (RLSD, arXiv 2604.03128):
    for gate=direct.

    A token that the hint makes more likely weighs more in a completion with A > 0, and less in one with A < 0. If the policy
    were a true joint distribution of hints and completions, exp(D_t) would be the factor by which the token changes the
    probability of the hint. Weights do not keep a completion's mass.

    All is read at `rollout.temperature`. A completion without a hint, or of advantage 0, keeps the score 1;
    `unread_frac` counts the first.

    Args:
        hint: see `credit.hints.HINTS`; the paper's is `solution`.
        teacher: see `Hindsight`, as for the rest.
    """

    def __init__(
        self,
        hint: HintKind = "answer",
        teacher: Teacher | None = None,
        template: str = TEMPLATE,
        token_budget: SomeTokens = PASS_TOKENS,
        region: Region = "response",
    ) -> None:
        super().__init__(teacher, template, token_budget, region)
        self.hint: HintKind = hint
        self.reads_groups = hint in OF_GROUPS

    def log_ratios(self, model: Any, rollouts: Rollouts, asked: Sequence[int]) -> tuple[Float[Tensor, "B S"], int]:
        hints = [(row, text) for row in asked if (text := HINTS[self.hint](rollouts, row)) is not None]
        return self.of_hints(model, rollouts, hints)

    def of_hints(self, model: Any, rollouts: Rollouts, hints: Hints) -> tuple[Float[Tensor, "B S"], int]:
        """D with given hints, at most one a row."""
        out = torch.zeros(rollouts.token_ids.shape, device=rollouts.token_ids.device)
        told = self.told(model, rollouts, hints)
        rows = torch.tensor([row for row, _ in hints], dtype=torch.long, device=out.device)[told.read]
        if not len(rows):
            return out, 0
        found = told.logprobs[told.read] - self.untold(model, rollouts, rows)
        out = out.to(found.dtype)
        out[rows] = found
        return out, len(rows)


@checked("scorer")
class Serl(Rlsd):
    """RLSD's weights on action tokens, 1 on the others (SERL, arXiv 2605.19447): for gate=direct.

    There actions are an agent's, and environments answer them. A pattern of the text in their place is ours.

    Args:
        actions: where a completion's actions are, (problem, completion) -> `CausalSpans`.
        hint: see `Rlsd`, as for the rest.
    """

    def __init__(
        self,
        actions: Locate,
        hint: HintKind = "feedback",
        teacher: Teacher | None = None,
        template: str = TEMPLATE,
        token_budget: SomeTokens = PASS_TOKENS,
        region: Region = "response",
    ) -> None:
        super().__init__(hint, teacher, template, token_budget, region)
        self.actions = actions

    def log_ratios(self, model: Any, rollouts: Rollouts, asked: Sequence[int]) -> tuple[Float[Tensor, "B S"], int]:
        found, read = super().log_ratios(model, rollouts, asked)
        return found.masked_fill(~located(rollouts, self.actions, "scorer.actions").tokens, 0.0), read
