"""Curricula: which of the problems that a stream walks are taken, by how often their kind has been solved in training.

A stream walks its source in the same order as without a curriculum and passes over a problem with a probability that follows
from the pass rate of its kind. So every source can have one, finite or endless: what is taken is distributed as the source's
own problems times the weight.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Interval

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.ordering import numbered
from oar_lightning.common.ranges import Fraction, ProperFraction, checked
from oar_lightning.types import MathProblem

FEW_KINDS = 32
"""Up to so many kinds each have metrics of their own, unless a kind is a single problem."""


class Curriculum:
    """Base of curricula; this one takes every problem.

    `active`: whether pass rates are kept.
    """

    active = False

    def kind(self, problem: MathProblem, endless: bool) -> str:
        """What the problem's pass rate is kept by. `endless`: whether its source is."""
        return ""

    def by_problem(self, endless: bool) -> bool:
        """Whether a kind is a single problem."""
        return False

    def weight(self, pass_rate: float | None, progress: float) -> float:
        """The probability in (0, 1] that a problem of this pass rate is taken where the stream meets it.

        `pass_rate`: of its kind, None where that was never tried; `progress`: the fraction of the run's steps that are done.
        """
        return 1.0

    def updated(self, pass_rate: float | None, found: float) -> float:
        """The pass rate of a kind after one more group of completions, of which the share `found` was right."""
        return found

    def stage(self, progress: float) -> int:
        """The number of the run's stage, from 1."""
        return 1

    def check(self, problem: MathProblem, endless: bool) -> None:
        """Raises: ConfigError: where a source with this problem has no such kinds."""


class EveryProblem(Curriculum):
    """No curriculum."""


@checked("curriculum")
@dataclass(frozen=True)
class DifficultyCurriculum(Curriculum):
    """Problems that are solved now and then, later those that are seldom solved. The formulas are ours.

    With p the pass rate of a problem's kind, its weight is p (1 - p) + floor in stage 1 and [p < 0.5] + floor in stage 2, each
    over its largest value; 1 for a kind that was never tried. p begins as the share of right completions of the kind's first
    group, and follows p <- decay p + (1 - decay) share.

    Args:
        by: what a kind is: `problem`, `level`, or the name of an extra column, without which problems are one kind;
            `auto`: the level of endless sources, whose
            problems do not come again, and the problem of others.
        decay: of the moving average over groups.
        floor: added to every weight, so that no kind is given up.
        second_stage: the fraction of the run's steps after which stage 2 begins; 1 for never.
    """

    by: str = "auto"
    decay: ProperFraction = 0.9
    floor: Annotated[float, Interval(ge=0.01, le=1)] = 0.05
    second_stage: Fraction = 0.6

    active = True

    def by_problem(self, endless: bool) -> bool:
        return self.by == "problem" or (self.by == "auto" and not endless)

    def kind(self, problem: MathProblem, endless: bool) -> str:
        if self.by_problem(endless):
            value: Any = problem.id or problem.question
        else:
            value = problem.level if self.by in ("auto", "level") else problem.extra.get(self.by, "")
        return f"{problem.source} {value}".strip()

    def weight(self, pass_rate: float | None, progress: float) -> float:
        if pass_rate is None:
            return 1.0
        if self.stage(progress) == 1:
            return (pass_rate * (1 - pass_rate) + self.floor) / (0.25 + self.floor)
        return ((pass_rate < 0.5) + self.floor) / (1 + self.floor)

    def updated(self, pass_rate: float | None, found: float) -> float:
        return found if pass_rate is None else self.decay * pass_rate + (1 - self.decay) * found

    def stage(self, progress: float) -> int:
        return 1 if progress < self.second_stage else 2

    def check(self, problem: MathProblem, endless: bool) -> None:
        if self.by_problem(endless):
            return
        if self.by not in ("auto", "level"):
            if self.by not in problem.extra:
                raise ConfigError(
                    f"curriculum.by={self.by}: the training problems have no such extra column, they have "
                    f"{sorted(problem.extra)}; name one of them, or problem or level"
                )
        elif not problem.level:
            whose = f"those of {problem.source}" if problem.source else "they"
            raise ConfigError(
                f"curriculum.by={self.by} tells the problems of {'an endless' if endless else 'this'} source apart by their "
                f"level, and {whose} have none; set curriculum.by=problem or an extra column, or name a level_column"
            )


class Draws:
    """A curriculum at work in a stream: the pass rates so far, and which problems are taken. Equal on all ranks."""

    def __init__(self, curriculum: Curriculum, seed: int, endless: bool) -> None:
        self.curriculum = curriculum
        self.seed = seed
        self.endless = endless
        self.load_state_dict({})

    def takes(self, problem: MathProblem, epoch: int, offset: int, progress: float) -> bool:
        """Whether the problem at this place of the stream is taken."""
        if not self.curriculum.active:
            return True
        self.progress = progress
        weight = self.curriculum.weight(self.pass_rates.get(self.curriculum.kind(problem, self.endless)), progress)
        # the draw belongs to the place alone, whatever was drawn before
        taken = random.Random(f"curriculum/{self.seed}/{epoch}/{offset}").random() < weight
        self.taken += taken
        self.passed_over += not taken
        return taken

    def kind(self, problem: MathProblem) -> str:
        return self.curriculum.kind(problem, self.endless)

    def observe(self, groups: Sequence[tuple[str, float]]) -> None:
        """Take note of groups of completions, each as (kind of its problem, share of right ones), in the order of one rank.

        A share that is NaN says nothing.
        """
        for kind, share in groups:
            if not math.isnan(share):
                self.pass_rates[kind] = self.curriculum.updated(self.pass_rates.get(kind), min(max(share, 0.0), 1.0))

    def metrics(self) -> dict[str, float]:
        """Pass rates and weights over the known kinds, of each kind where these are few."""
        if not self.curriculum.active or not self.pass_rates:
            return {}
        weights = {kind: self.curriculum.weight(rate, self.progress) for kind, rate in self.pass_rates.items()}
        found = {
            "stage": float(self.curriculum.stage(self.progress)),
            "kinds": float(len(weights)),
            "pass_rate": math.fsum(self.pass_rates.values()) / len(weights),
            "weight": math.fsum(weights.values()) / len(weights),
            "passed_over_frac": self.passed_over / max(1, self.passed_over + self.taken),
        }
        if len(weights) <= FEW_KINDS and not self.curriculum.by_problem(self.endless):
            names = numbered([re.sub(r"[^\w.-]", "_", kind) for kind in self.pass_rates])  # <5 and >5 are two kinds
            for name, (kind, rate) in zip(names, self.pass_rates.items(), strict=True):
                found |= {f"pass_rate/{name}": rate, f"weight/{name}": weights[kind]}
        return {f"data/curriculum/{name}": value for name, value in found.items()}

    def state_dict(self) -> dict[str, Any]:
        """Plain containers; empty without a curriculum."""
        if not self.curriculum.active:
            return {}
        counts = {"taken": self.taken, "passed_over": self.passed_over, "progress": self.progress}
        return {"pass_rates": dict(self.pass_rates), **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; an empty one is the beginning."""
        self.pass_rates: dict[str, float] = dict(state.get("pass_rates", {}))
        self.taken, self.passed_over = int(state.get("taken", 0)), int(state.get("passed_over", 0))
        self.progress = float(state.get("progress", 0.0))
