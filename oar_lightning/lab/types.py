"""What travels between the stages of the lab. Per-token arrays are ``[B S]`` as in `oar_lightning.types`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Estimate:
    """What one estimator, a scorer with its gate, says of the completions.

    ``scores`` are the scorer's, ``advantages`` the token advantages that its gate makes of them. ``signed``: a negative score
    blames. ``forward_equivalents`` is the work in forward passes over the completions; NaN where the scorer does not count.
    """

    name: str
    scores: Float[Tensor, "B S"]
    advantages: Float[Tensor, "B S"]
    signed: bool
    seconds: float
    forward_equivalents: float = float("nan")


@dataclass(frozen=True)
class Truth:
    """What is known of the tokens that decide a completion's outcome, from one source.

    ``known`` marks the tokens that the source speaks of, rows without any are left out. ``decisive`` are the tokens that an
    unsigned score should rank first. ``values`` are signed: how much the expected reward rises with a token; None where the
    source knows no size. ``halves`` are two independent estimates of ``values``, for their reliability; None where the source
    is exact.
    """

    name: str
    known: Bool[Tensor, "B S"]
    decisive: Bool[Tensor, "B S"]
    values: Float[Tensor, "B S"] | None = None
    halves: tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]] | None = None


@dataclass(frozen=True)
class Measure:
    """One quality of all estimators: ``values[estimator][i]`` is that of completion i, NaN where it is not defined.

    ``key`` is a short name such as ``chain.auroc``; ``title`` names it in words with its unit. ``chance`` is the value of
    random scores, where there is one.
    """

    key: str
    title: str
    better: Literal["high", "low"]
    values: Mapping[str, tuple[float, ...]]
    chance: float | None = None


@dataclass(frozen=True)
class Curve:
    """The outcome after removing or keeping the tokens that rank first: ``outcome[estimator][j]`` at ``fraction[j]`` of the
    tokens, mean over completions."""

    key: str
    title: str
    fraction: tuple[float, ...]
    outcome: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
