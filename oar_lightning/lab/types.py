"""What travels between the stages of the lab. Per-token arrays are ``[B S]`` as in `oar_lightning.types`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.reporting.statistics import Interval
from oar_lightning.types import Rollouts

ROUNDING = 1e-6
"""By which a difference of two means of rewards may miss the decimal number that it is."""


@dataclass(frozen=True)
class Studied:
    """The completions that all estimators are held against.

    ``rollouts`` have their group advantages. Their ``group_size`` is 1, since recorded problems differ in their number of
    completions. ``problem[i]`` is the number of row i's problem, the unit of the bootstrap; a problem's rows are consecutive.
    ``correct`` are the verdicts, None without a gold answer. ``probabilities`` and ``entropy`` (nats) are the policy's at each
    response token, ``free`` marks the reasoning tokens of a probability below 0.98, which could have been others.
    """

    rollouts: Rollouts
    problem: tuple[int, ...]
    ids: tuple[str, ...]
    correct: tuple[bool | None, ...]
    probabilities: Float[Tensor, "B S"]
    entropy: Float[Tensor, "B S"]
    free: Bool[Tensor, "B S"]


@dataclass(frozen=True)
class Estimate:
    """What one estimator, a scorer with its gate, says of the completions.

    ``scores`` are the scorer's, ``advantages`` the token advantages that its gate makes of them, ``loss_mask`` the tokens that
    the gate leaves in the loss (None: all of the response). ``signed``: a negative score blames. ``again`` are the scores with
    other draws; None where the scorer draws nothing. ``forward_equivalents`` is the work in forward passes over the
    completions; NaN where the scorer does not count. ``control``: it stands in the table for comparison.
    """

    name: str
    scores: Float[Tensor, "B S"]
    advantages: Float[Tensor, "B S"]
    signed: bool
    seconds: float
    forward_equivalents: float = float("nan")
    loss_mask: Bool[Tensor, "B S"] | None = None
    again: Float[Tensor, "B S"] | None = None
    control: bool = False


@dataclass(frozen=True)
class Truth:
    """What is known of the tokens that decide a completion's outcome, from one source.

    ``known`` marks the tokens that the source speaks of; rows without any are left out. ``decisive`` are the tokens that a
    score should rank first, by its size where it is signed. ``values`` are signed: how much the expected reward rises with a
    token; None where the source knows no size. ``halves`` are two independent estimates of ``values`` by fewer draws, for their
    reliability; None where the source is exact. ``steps`` numbers the steps of a text whose first error is decisive, -1 outside
    of steps; None where `decisive` is not a first error. With ``whole_steps`` it is all tokens of the first wrong step; which
    of them is the error the source does not know.
    """

    name: str
    known: Bool[Tensor, "B S"]
    decisive: Bool[Tensor, "B S"]
    values: Float[Tensor, "B S"] | None = None
    halves: tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]] | None = None
    steps: Int[Tensor, "B S"] | None = None
    whole_steps: bool = False


@dataclass(frozen=True)
class Measure:
    """One quality of all estimators: ``values[estimator][i]`` is that of completion i, NaN where it is not defined.

    ``key`` is a short name such as ``chain.auroc``; ``title`` names it in words with its unit. ``chance`` is the value of
    random scores, where there is one. ``ceiling[estimator]`` is the most that can be attained, given how reliable truth and
    estimator are.
    """

    key: str
    title: str
    better: Literal["high", "low"]
    values: Mapping[str, tuple[float, ...]]
    chance: float | None = None
    ceiling: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Curve:
    """The outcome after removing or keeping the tokens that rank first: ``outcome[estimator][j]`` at ``fraction[j]`` of the
    tokens, mean over completions."""

    key: str
    title: str
    fraction: tuple[float, ...]
    outcome: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Findings:
    """All that a lab has found so far; what its table and its page show.

    ``gradients[estimator][statistic]`` are those of `lab.gradients.quality.statistics`, also of the references
    ``(unweighted)`` and ``(values)``.
    """

    studied: Studied
    truths: tuple[Truth, ...]
    estimates: tuple[Estimate, ...]
    measures: tuple[Measure, ...] = ()
    curves: tuple[Curve, ...] = ()
    gradients: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
