"""Results of problems: made by hand, and of a small evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.fixtures import make_stage, tiny_policy

from oar_lightning.answers.reward import Completion
from oar_lightning.evaluation.evaluate import EvaluatedBatch, EvaluationConfig, evaluate
from oar_lightning.evaluation.result import ProblemResult
from oar_lightning.rollout import SamplingConfig
from oar_lightning.types import MathProblem

PROBLEMS = [MathProblem(f"Ann has {i} pens.", str(i), level=str(i % 2)) for i in range(5)]


class VowelAccuracy:
    """Half of all texts are right; a problem's gold answer matters, so that rows cannot be mixed up unseen."""

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float]:
        return [float((sum(map(ord, c.text)) + int(p.answer)) % 2) for p, c in zip(problems, completions, strict=True)]


def result(classes: list[int | None], greedy: int | None = None, level: str = "", truncated: int = 0) -> ProblemResult:
    """A problem whose answers are in the given classes; class 0 is the correct one."""
    n = len(classes)
    answers = tuple(None if c is None else str(c) for c in classes)
    correct = tuple(int(c == 0) for c in classes)
    cut = tuple(i < truncated for i in range(n))
    rewards = tuple(map(float, correct))
    return ProblemResult("", "?", "0", level, "", ("",) * n, answers, correct, rewards, cut, tuple(classes), None, None, greedy)


def run_evaluation(seed: int = 0, step: int = 0, start: int = 0, **changes: Any) -> list[EvaluatedBatch]:
    policy = tiny_policy()
    config = EvaluationConfig(**{"samples": 4, "seed": seed, **changes})
    stage = make_stage(policy, VowelAccuracy())
    return list(evaluate(policy.model, stage, PROBLEMS, SamplingConfig(max_new_tokens=8), config, step, start))
