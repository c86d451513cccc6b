"""Results of problems: the file that keeps them, and the table of completions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.fixtures import make_stage, tiny_policy

from oar_lightning.answers.reward import Completion
from oar_lightning.evaluation.evaluate import EvaluatedBatch, EvaluationConfig, evaluate
from oar_lightning.evaluation.result import ProblemResult, ResultsFile, completions_table
from oar_lightning.rollout import SamplingConfig
from oar_lightning.types import MathProblem


def result(classes: list[int | None], greedy: int | None = None, level: str = "", truncated: int = 0) -> ProblemResult:
    """A problem whose answers are in the given classes; class 0 is the correct one."""
    n = len(classes)
    answers = tuple(None if c is None else str(c) for c in classes)
    correct = tuple(int(c == 0) for c in classes)
    cut = tuple(i < truncated for i in range(n))
    rewards = tuple(map(float, correct))
    return ProblemResult("", "?", "0", level, "", ("",) * n, answers, correct, rewards, cut, tuple(classes), None, None, greedy)


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    results = [result([0, None, 1], 1, "Level \u2028 5"), result([None] * 3)]
    file = ResultsFile(tmp_path / "deep" / "x.jsonl")
    assert file.read() == []
    file.append(results[:1])
    file.append(results[1:])
    assert file.read() == results
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-5])  # a kill in the middle of a line
    assert file.read() == results[:1]
    file.append(results[1:])
    assert file.path.read_bytes() == whole
    file.path.write_text('{"id": 1}\n')
    with pytest.raises(ValueError, match=r"x\.jsonl:1 holds no result"):
        file.read()


class VowelAccuracy:
    """Half of all texts are right; a problem's gold answer matters, so that rows cannot be mixed up unseen."""

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float]:
        return [float((sum(map(ord, c.text)) + int(p.answer)) % 2) for p, c in zip(problems, completions, strict=True)]


PROBLEMS = [MathProblem(f"Ann has {i} pens.", str(i), level=str(i % 2)) for i in range(5)]


def run_evaluation(seed: int = 0, step: int = 0, start: int = 0, **changes: Any) -> list[EvaluatedBatch]:
    policy = tiny_policy()
    config = EvaluationConfig(**{"samples": 4, "seed": seed, **changes})
    stage = make_stage(policy, VowelAccuracy())
    return list(evaluate(policy.model, stage, PROBLEMS, SamplingConfig(max_new_tokens=8), config, step, start))


def test_the_completions_table_has_a_row_for_every_completion() -> None:
    (batch,) = run_evaluation()
    table = completions_table(batch.results, [[0.1, 0.2, 0.3, 0.4]] * 5)
    assert list(table)[:6] == ["prompt", "completion", "answer", "gold", "reward", "advantage"]
    assert table["sample"] == [0, 1, 2, 3, "greedy"] * 5
    assert table["advantage"] == [0.1, 0.2, 0.3, 0.4, None] * 5
    sampled = [i for i, s in enumerate(table["sample"]) if s != "greedy"]
    assert [table["completion"][i] for i in sampled] == list(batch.rollouts.completions)
    assert table["correct"] == [c for r in batch.results for c in (*r.correct, r.greedy_correct)]
    assert table["level"] == [p.level for p in PROBLEMS for _ in range(5)]
    assert set(completions_table(batch.results)["advantage"]) == {None}
