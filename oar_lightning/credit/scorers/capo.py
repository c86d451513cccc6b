"""Token rewards by the outcome and by the steps that a judge calls wrong (CAPO)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import NonNegativeFloat, PositiveFloat, checked
from oar_lightning.credit.component import Tools
from oar_lightning.credit.judges.base import Judge, Solution
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.credit.segments import Segmenter, reasoning_or_all, segment_numbers
from oar_lightning.objective.advantage import centred_and_std
from oar_lightning.types import Rollouts

EPSILON = 1e-4
"""Added to the standard deviation, as to that of group advantages."""


@checked("scorer")
class Capo(Scorer):
    """A_it = (r_it - mean) / (std + 1e-4) over all response tokens of the group, with r_it = outcome * R_i - penalty * e_it and
    e_it = 1 in a step that the judge calls wrong: for gate=signed.

    After CAPO (arXiv 2508.02298), of which only a figure and summaries were read: formula, normalisation and constants are a
    definition of this package. R_i is the weighted reward. `std` is that of the tokens, not an estimate. Long completions count
    more in mean and std than short ones, which sets the scores apart from GRPO's even where no step is wrong. A group of equal
    token rewards has scores 0.

    Steps divide the reasoning, or all of the response where there is no answer. A completion without a judgement has e = 0: its
    outcome alone counts (`unjudged_frac`). So it is with one without text. Equal completions of a
    problem are judged once. `wrong_frac` is the fraction of completions with a wrong step.

    Args:
        judge: says which steps are wrong.
        segments: divides a completion into steps.
        outcome: factor of the reward.
        penalty: of a token in a wrong step.
    """

    covers = "response"
    signed = whole = True
    reads_all_rows = True  # equal rewards may have unequal steps
    reads_groups = True

    def __init__(
        self, judge: Judge, segments: Segmenter, outcome: PositiveFloat = 2.0, penalty: NonNegativeFloat = 1.0
    ) -> None:
        self.judge = judge
        self.segments = segments
        self.outcome = outcome
        self.penalty = penalty

    def use(self, tools: Tools) -> None:
        self.judge.use(tools)

    def forecast(self, completions: int, tokens: int) -> str:
        return self.judge.forecast(completions)

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        """Raises ValueError for rollouts without texts."""
        rewards = rollouts.rewards.double()[:, None] * self.outcome - self.penalty * self.errors(model, rollouts)
        return group_normalized(rewards, rollouts.response_mask, rollouts.group_size).float()

    def errors(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        """e: how wrong the judge finds the step of each token, in [0, 1]."""
        if not rollouts.token_spans:
            raise ValueError("scorer=capo reads the text of completions, and these rollouts have none; use another scorer")
        mask = reasoning_or_all(rollouts)
        numbers = segment_numbers(self.segments(model, rollouts, mask), mask).cpu()
        solutions = [_solution(rollouts, row, numbers[row]) for row in range(len(rollouts))]
        distinct = list(dict.fromkeys(one for one in solutions if one is not None))
        verdicts = dict(zip(distinct, self.judge(distinct), strict=True))
        out, judged = torch.zeros(mask.shape, dtype=torch.float64), 0
        for row, solution in enumerate(solutions):
            if solution is not None and (verdict := verdicts[solution]) is not None:
                judged += 1
                inside = numbers[row] >= 0
                out[row, inside] = torch.tensor(verdict, dtype=torch.float64)[numbers[row, inside]]
        self.metrics = {
            "forward_equivalents": self.segments.passes(rollouts),
            "unjudged_frac": 1 - judged / len(rollouts),
            "wrong_frac": float(out.any(1).double().mean()),
        }
        self.totals = self.judge.totals
        return out.to(rollouts.token_ids.device)

    def state_dict(self) -> dict[str, Any]:
        return self.judge.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.judge.load_state_dict(state)


def _solution(rollouts: Rollouts, row: int, numbers: Tensor) -> Solution | None:
    """A completion with its steps; None without text or steps."""
    text, ranges = rollouts.completions[row], rollouts.token_spans[row]
    of_tokens = numbers[rollouts.response_mask[row].cpu()].tolist()
    steps: dict[int, tuple[int, int]] = {}
    for number, (start, end) in zip(of_tokens, ranges, strict=True):
        if number >= 0:
            steps[number] = (steps.get(number, (start, end))[0], end)
    if not steps or not text.strip():
        return None
    return Solution(rollouts.problems[row], text, tuple(steps.values()))


def group_normalized(rewards: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"], group_size: int) -> Float[Tensor, "B S"]:
    """(r - mean) / (std + 1e-4) over all masked tokens of a group; 0 outside the mask, in a group of equal rewards, and for
    rewards that are not finite, which are left out."""
    centred, std = centred_and_std(rewards, mask & rewards.isfinite(), group_size)
    return (centred / (std + EPSILON)).masked_fill(std == 0, 0.0).view_as(rewards)
