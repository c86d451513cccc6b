"""The settings of task=lab."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oar_lightning.lab.faithfulness import Faithfulness
from oar_lightning.lab.gradients.study import Gradients
from oar_lightning.lab.stability import Stability
from oar_lightning.lab.values import ValueConfig


@dataclass(frozen=True)
class LabConfig:
    """What a lab studies, and what it knows.

    Args:
        problems: number of problems whose completions are sampled.
        samples: completions of each.
        set: where the problems are from: `train`, or the name of one of `data.evaluation`.
        files: JSONL files (gzip too) of recorded completions, or glob patterns; none are sampled then.
        limit: number of usable rows to read, the first ones; None for all.
        max_tokens: most tokens of a recorded prompt and completion; None for what the policy can read.
        estimators: name -> `scorer`, and where wanted `gate` and `control`.
        past: folders of runs, one a scorer that compares the policy with its past in training: what it compares with.
        truths: name -> what knows the decisive tokens of a completion without sampling (`lab.truth.Source`).
        continuations: of each prefix at most; see `ValueConfig`, like `batch`, `half_width` and `budget`. 0: no values.
        decisive: the difference of values from which a token is decisive.
        faithfulness, stability, gradients: what else is measured of the estimators; None leaves it out.
        baseline: the estimator with which all others are compared.
        cache: the file that keeps what was sampled.
        report: a folder that gets the page, the numbers and a README.
        render: the folder of a lab that ended, whose page is written again; nothing else is done then.
    """

    problems: int = 16
    samples: int = 4
    set: str = "train"
    files: str | Sequence[str] = ()
    limit: int | None = None
    max_tokens: int | None = None
    estimators: Mapping[str, Any] = field(default_factory=dict)
    truths: Mapping[str, Any] = field(default_factory=dict)
    past: str | Sequence[str] = ()
    continuations: int = 16
    batch: int = 8
    half_width: float = 0.17
    budget: int | None = None
    decisive: float = 0.3
    faithfulness: Faithfulness | None = None
    stability: Stability | None = None
    gradients: Gradients | None = None
    baseline: str = "is_digit"
    cache: str = "outputs/lab/cache.db"
    report: str | None = None
    render: str | None = None

    def __post_init__(self) -> None:
        for key, lowest in (("problems", 1), ("samples", 1), ("limit", 1), ("max_tokens", 1), ("continuations", 0)):
            value = getattr(self, key)
            if value is not None and value < lowest:
                raise ValueError(f"lab.{key} must be >= {lowest}, got {value}")
        if not 0 < self.decisive < math.inf:
            raise ValueError(f"lab.decisive is a difference of rewards and must be finite and > 0, got {self.decisive}")
        if self.continuations:
            self.values(0)

    @property
    def idle(self) -> dict[str, str]:
        """Settings without effect, "key=value" -> why, of those that are not the defaults."""
        groups = (
            (self.files, ("problems", "samples", "set"), "lab.files names recorded completions, and none are sampled"),
            (not self.files, ("limit", "max_tokens"), "lab.files is empty"),
            (not self.continuations, ("batch", "half_width", "budget"), "lab.continuations=0"),
        )
        without = [(key, why) for found, keys, why in groups if found for key in keys]
        return {f"{key}={value}": why for key, why in without if (value := getattr(self, key)) != getattr(LabConfig, key)}

    def values(self, seed: int) -> ValueConfig:
        """How prefixes are continued."""
        return ValueConfig(self.continuations, self.batch, self.half_width, self.budget, seed)
