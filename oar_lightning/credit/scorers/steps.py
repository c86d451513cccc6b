"""Scorers whose tokens share the score of their step, and what can be made of any such scores."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.common.ranges import PositiveFloat, checked
from oar_lightning.credit.scorers.base import Scorer, Wrapper
from oar_lightning.types import Rollouts


class Steps(NamedTuple):
    """The tokens' scores, equal within a step and 0 outside of steps, and the number of the step of each: 0, 1, ... in order;
    -1 outside."""

    scores: Float[Tensor, "B S"]
    numbers: Int[Tensor, "B S"]


class StepScorer(Scorer):
    """Base of scorers by steps."""

    @abstractmethod
    def steps(self, model: Any, rollouts: Rollouts) -> Steps:
        """The scores of the steps."""
        ...

    def of_tokens(self, model: Any, rollouts: Rollouts, scores: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        """The tokens' scores from those of their steps; they stay here."""
        return scores

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        return self.of_tokens(model, rollouts, self.steps(model, rollouts).scores)


@checked("scorer")
class MinForm(Wrapper, StepScorer):
    """The min-form of PURE over another scorer's steps: a completion is worth its worst step.

    The steps' scores p_k become w_k p_k with w = softmax(-p / temperature) over a completion's steps. They sum to the smallest
    score as the temperature falls to 0, and to the mean as it grows.

    Args:
        inner: gives the scores of the steps.
        temperature: in the unit of the scores.
    """

    inner: StepScorer

    def __init__(self, inner: Scorer, temperature: PositiveFloat = 0.1) -> None:
        if not isinstance(inner, StepScorer):
            raise ValueError(
                f"scorer.inner={type(inner).__name__} has no steps, which scorer=min_form weights; use monte_carlo or "
                "information_gain"
            )
        super().__init__(inner)
        self.temperature = temperature

    def steps(self, model: Any, rollouts: Rollouts) -> Steps:
        found = self.inner.steps(model, rollouts)
        return found._replace(scores=min_form(found, self.temperature))

    def of_tokens(self, model: Any, rollouts: Rollouts, scores: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        found = self.inner.of_tokens(model, rollouts, scores)
        self.measured_by_inner()  # `of_tokens` may leave tokens out
        return found


def min_form(steps: Steps, temperature: float) -> Float[Tensor, "B S"]:
    """Scores p_k -> softmax(-p / temperature)_k p_k, the softmax over each completion's steps."""
    numbers = steps.numbers
    before = torch.nn.functional.pad(numbers[:, :-1], (1, 0), value=-1)
    one_of_each = (numbers >= 0) & (numbers != before)  # the first token of each step
    exponents = -steps.scores.double() / temperature
    total = exponents.masked_fill(~one_of_each, -torch.inf).logsumexp(1, keepdim=True)
    weights = (exponents - total).exp()
    return (weights * steps.scores).masked_fill(numbers < 0, 0.0).to(steps.scores)
