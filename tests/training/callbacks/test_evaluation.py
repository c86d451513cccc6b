"""Metrics of past evaluations; how a run evaluates is in tests/training/test_module.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.fixtures import TASK, LengthReward, make_module, make_stage, tiny_policy

from oar_lightning.credit.scorers import Entropy, Oracle
from oar_lightning.data.chain.task import ChainProblems
from oar_lightning.data.task_credit import TaskCredit
from oar_lightning.evaluation.evaluate import EvaluationConfig
from oar_lightning.rollout.sampling import SamplingConfig
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.training.callbacks import evaluation as callback
from oar_lightning.training.callbacks.evaluation import EvaluationCallback
from oar_lightning.types import MathProblem


def test_a_metric_is_that_of_its_set_and_step(tmp_path: Path) -> None:
    """Also where the name of a set begins with that of another one."""
    config = EvaluationConfig(samples=2)
    stage = make_stage(tiny_policy(), LengthReward())
    evaluation = EvaluationCallback({"a": [], "a/b": []}, stage, SamplingConfig(8), config, Tracker(tmp_path, None))
    evaluation.history = [
        {"step": step, "benchmark": name, "metrics": {"avg_at_2": step / 8 + shift}}
        for step in (0, 4)
        for name, shift in (("a", 0.0), ("a/b", 0.25))
    ]
    assert [evaluation.value(f"eval/{name}/avg_at_2", step) for step in (0, 4) for name in ("a", "a/b")] == [
        0.0,
        0.25,
        0.5,
        0.75,
    ]
    assert evaluation.value("eval/a/avg_at_2", 2) is None


def test_a_heatmaps_entropies_are_those_that_scorers_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the temperature that the completions were sampled at."""
    seen: list[Any] = []

    def shown(rollouts: Any, token_bytes: Any, credit: Any, entropy: Any, *rest: Any) -> list[Any]:
        seen.append((credit.importance, entropy, rollouts.reasoning_mask))
        return []

    monkeypatch.setattr(callback, "heatmap_completions", shown)
    problem = MathProblem("1 + 1 =", "2")
    result: Any = SimpleNamespace(question=problem.question, gold=problem.answer, correct=(1, 0))
    module = make_module(tiny_policy(), Entropy(), LengthReward(), temperature=0.5)
    rollouts = module.collector.stage(module.model, (problem,), 2, module.method.sampling, [0], 0)
    callback.heatmap_page(module, rollouts, result, [1.0, -1.0], "a problem")
    ((importance, entropy, mask),) = seen
    torch.testing.assert_close(entropy[mask], importance[mask], rtol=1e-4, atol=1e-5)
    assert entropy[mask].min() > 0


def test_of_problems_that_the_scorer_does_not_know_there_is_no_heat_map(caplog: pytest.LogCaptureFixture) -> None:
    scorer = Oracle(TaskCredit())
    module: Any = SimpleNamespace(method=SimpleNamespace(scorer=scorer))
    rows: list[Any] = [SimpleNamespace(problems=(p,)) for p in (ChainProblems(TASK)[0], MathProblem("What is 2 + 2?", "4"))]
    own, foreign = rows
    assert callback._readable(module, own, "chain")
    assert not callback._readable(module, foreign, "math500")
    assert "no heat-map of evaluation set math500: scorer.locate reads problems of data=chain or graph only" in caplog.text
