"""Rules that drop training problems, `problem -> reason or None`, for `ProblemStream`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oar_lightning.data.decontamination import Contamination
from oar_lightning.data.prompts import PromptTemplate
from oar_lightning.data.stream import Keep, ProblemSource, eval_set_problems, is_endless
from oar_lightning.types import MathProblem


@dataclass(frozen=True)
class PromptLength:
    """Drops problems whose rendered prompt, encoded as for rollouts, has more than `limit` tokens."""

    prompt: PromptTemplate
    tokenizer: Any
    limit: int

    def __call__(self, problem: MathProblem) -> str | None:
        ids = self.tokenizer(self.prompt.render(problem), add_special_tokens=False).input_ids
        return "prompt too long" if len(ids) > self.limit else None


def with_solution(problem: MathProblem) -> str | None:
    """Drops problems without a worked solution, of which a warm start learns nothing."""
    return None if problem.solution else "no solution"


@dataclass(frozen=True)
class Decontamination:
    """Drops problems that are also in an evaluation set."""

    contamination: Contamination

    def __call__(self, problem: MathProblem) -> str | None:
        reason = self.contamination.reason(problem)
        return None if reason is None else f"contaminated {reason}"


@dataclass(frozen=True)
class AnyOf:
    """Drops what any of the rules drops, with the reason of the first one that does."""

    rules: tuple[Keep, ...]

    def __call__(self, problem: MathProblem) -> str | None:
        return next((reason for rule in self.rules if (reason := rule(problem)) is not None), None)


def training_filter(eval_sets: Mapping[str, ProblemSource], problems: int | None, length: PromptLength | None) -> AnyOf:
    """Drops what these evaluation sets hold (see `not_evaluated`; none where there are none), and too long prompts."""
    rules = ([not_evaluated(eval_sets, problems)] if eval_sets else []) + ([length] if length else [])
    return AnyOf(tuple(rules))


def not_evaluated(eval_sets: Mapping[str, ProblemSource], problems: int | None) -> Decontamination:
    """Drops what the evaluation sets hold; of an endless one its first `problems`, as many as are evaluated."""
    return Decontamination(Contamination(itertools.chain.from_iterable(whole_eval_sets(eval_sets, problems).values())))


def whole_eval_sets(eval_sets: Mapping[str, ProblemSource], problems: int | None) -> dict[str, list[MathProblem]]:
    """All problems of each evaluation set; of an endless one the first `problems`, as many as are evaluated."""
    return {
        name: eval_set_problems(source, problems if is_endless(source) else None, name) for name, source in eval_sets.items()
    }
