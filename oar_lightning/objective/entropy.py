"""An entropy term whose coefficient is adapted to the policy's entropy while it trains.

`AdaptiveEntropy` is adaptive entropy regularisation (AER, 2510.10959) as restated here: no code of its authors is public, and
the formulas are ours where an account of the paper leaves them open. `StepEntropy` is the controller of Skywork-OR1 as TRL has
it (`use_adaptive_entropy`).

A step's coefficient follows from the entropies of the steps before it, so that all its micro-batches have the same one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import NonNegativeFloat, PositiveFloat, Rule, checked
from oar_lightning.objective.loss import Denominators

EXCEEDS = "entropy.coef_start={coef_start} is more than entropy.coef_max={coef_max}; lower it"


class EntropyControl:
    """Base of what adapts the coefficient of an entropy term.

    `active`: whether there is a term. All completions then have a gradient and are read, those of advantage 0 too.
    `by_difficulty`: whether problems that are seldom solved count more. `by_step`: whether only tokens of some steps count.
    """

    active = False
    by_difficulty = False
    by_step = False

    @property
    def coefficient(self) -> float:
        """What the step to come multiplies its entropies by."""
        return 0.0

    @property
    def target(self) -> float | None:
        """The entropy that is aimed at, nats; None where it is not known yet."""
        return None

    @property
    def metrics(self) -> dict[str, float]:
        """What is logged of a step; nothing without a term."""
        if not self.active:
            return {}
        return {"entropy_coef": self.coefficient} | ({} if self.target is None else {"entropy_target": self.target})

    def weights(
        self,
        mask: Bool[Tensor, "B S"],
        denominators: Denominators,
        difficulty: Float[Tensor, " B"] | None,
        factor: Float[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B S"] | None:
        """What the loss subtracts of each token's entropy; None for nothing. `mask`: the tokens that count in the loss;
        `difficulty`: the weight of each completion; `factor`: of each token."""
        if not self.coefficient:
            return None
        shares = self.shares(mask, denominators)
        shares = shares if difficulty is None else shares * difficulty[:, None]
        return self.coefficient * (shares if factor is None else shares * factor)

    def shares(self, mask: Bool[Tensor, "B S"], denominators: Denominators) -> Float[Tensor, "B S"]:
        """Each token's share of the mean that the term takes: here over all tokens of the optimizer step."""
        return mask / denominators.tokens

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adapt the coefficient to the metrics of an optimizer step, which are those of all ranks.

        A step without an entropy, or with one that is not finite, changes nothing.
        """
        entropy = metrics.get("entropy", math.nan)
        if self.active and math.isfinite(entropy):
            self.adapt(entropy)

    def adapt(self, entropy: float) -> None:
        """Set the coefficient of the step to come, given the entropy of the last one in nats."""

    def forecast(self, completions: int) -> str:
        """What the term costs, in words; empty for nothing. `completions`: of an optimizer step, all ranks."""
        if not self.active:
            return ""
        return (
            f"entropy: {type(self).__name__} has all {completions} completions of an optimizer step in the update, those of "
            "groups with equal rewards too, which cost no update without it"
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; an empty one is the beginning."""
        if state:
            raise ValueError(
                f"entropy=none keeps no state, and the checkpoint holds some: {', '.join(state)}; resume with the entropy=... "
                "that the run began with"
            )


class Unadapted(EntropyControl):
    """No term beside the loss's own, whose coefficient is constant."""


class Adapted(EntropyControl):
    """Base of what moves a coefficient within bounds after each optimizer step."""

    active = True

    def __init__(self, coef_start: float, coef_min: float, coef_max: float, difficulty: bool) -> None:
        self.coef_start = coef_start
        self.coef_min = coef_min
        self.coef_max = coef_max
        self.by_difficulty = difficulty
        self._coef = coef_start

    @property
    def coefficient(self) -> float:
        return self._coef

    def move(self, by: float) -> None:
        """Change the coefficient, as far as its bounds let it."""
        self._coef = min(max(self._coef + by, self.coef_min), self.coef_max)

    def state_dict(self) -> dict[str, Any]:
        return {"coef": self._coef}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._coef = state.get("coef", self.coef_start)


@checked("entropy", Rule(lambda coef_start, coef_max: coef_start <= coef_max, EXCEEDS))
class AdaptiveEntropy(Adapted):
    """lam <- clip(lam + rate (H* - H) / H_0, 0, coef_max) after each optimizer step, with H* = target_ratio H_0.

    H is the step's mean token entropy and H_0 that of the first optimizer step. The loss gets - lam sum_i g_i mean_t H_it / B.
    H_0 = 0, a policy without entropy at the start, leaves lam as it is.

    Args:
        target_ratio: H* / H_0.
        rate: of the adaption.
        coef_max: the largest lam.
        coef_start: lam of the first step.
        difficulty: g_i is (1 - p_i) over its mean, p_i the accuracy of the completion's group; else 1.
        steps: `explore`: only tokens of steps that explore have the term (`credit.step_classes`, ours); the means stay those
            over all tokens.
    """

    def __init__(
        self,
        target_ratio: PositiveFloat = 0.4,
        rate: NonNegativeFloat = 0.005,
        coef_max: NonNegativeFloat = 0.05,
        coef_start: NonNegativeFloat = 0.0,
        difficulty: bool = True,
        steps: Literal["all", "explore"] = "all",
    ) -> None:
        super().__init__(coef_start, 0.0, coef_max, difficulty)
        self.by_step = steps == "explore"
        self.target_ratio = target_ratio
        self.rate = rate
        self._first: float | None = None

    @property
    def target(self) -> float | None:
        return None if self._first is None else self.target_ratio * self._first

    def shares(self, mask: Bool[Tensor, "B S"], denominators: Denominators) -> Float[Tensor, "B S"]:
        """Each token's share of the mean over completions of their token means."""
        return mask / (mask.sum(1, keepdim=True).clamp(min=1) * denominators.completions)

    def adapt(self, entropy: float) -> None:
        self._first = entropy if self._first is None else self._first
        if self._first > 0:
            self.move(self.rate * (self.target_ratio - entropy / self._first))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"first": self._first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._first = state.get("first")


@checked(
    "entropy",
    Rule(lambda coef_start, coef_max: coef_start <= coef_max, EXCEEDS),
    Rule(
        lambda coef_start, coef_min: coef_min <= coef_start,
        "entropy.coef_min={coef_min} is more than entropy.coef_start={coef_start}; lower it",
    ),
)
class StepEntropy(Adapted):
    """The coefficient rises by `delta` after a step with entropy <= target, and else falls by it; TRL's defaults.

    A step has the term only where the entropy of the step before was <= target; the first has none. The term is the mean
    entropy over the tokens of the optimizer step. Where a gate or scorer leaves tokens out of the loss it is over those that
    are left, and what is compared with `target` is the entropy of all response tokens, which is lower as a rule.

    Args:
        target: entropy in nats.
        delta: by which the coefficient changes.
        coef_min: the smallest coefficient.
        coef_max: the largest one.
        coef_start: of the first step.
        difficulty: weigh completions as `AdaptiveEntropy` does; TRL does not.
    """

    def __init__(
        self,
        target: Annotated[PositiveFloat, "an entropy in nats"] = 0.2,
        delta: NonNegativeFloat = 0.005,
        coef_min: NonNegativeFloat = 0.0,
        coef_max: NonNegativeFloat = 1.0,
        coef_start: NonNegativeFloat = 0.0,
        difficulty: bool = False,
    ) -> None:
        super().__init__(coef_start, coef_min, coef_max, difficulty)
        self._target = target
        self.delta = delta
        self._below = False

    @property
    def coefficient(self) -> float:
        return self._coef if self._below else 0.0

    @property
    def target(self) -> float | None:
        return self._target

    def adapt(self, entropy: float) -> None:
        self._below = entropy <= self._target
        self.move(self.delta if self._below else -self.delta)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"below": self._below}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._below = state.get("below", False)


def difficulty_weights(accuracy: Float[Tensor, " B"], group_size: int) -> Float[Tensor, " B"]:
    """g = (1 - p) / mean(1 - p), p the mean accuracy of a completion's group; the mean is 1.

    NaN is an accuracy that does not apply: a group without any has weight 1, and the mean is over the others. All weights are
    1 where all problems are solved. The completions are those of all ranks.
    """
    missed = (1 - accuracy.double().view(-1, group_size).nanmean(1)).clamp(0, 1)
    known = ~missed.isnan()
    mean = missed[known].mean()
    weights = torch.where(known & (mean > 0), missed / mean, torch.ones_like(missed))
    return weights.repeat_interleave(group_size).to(accuracy.dtype)
