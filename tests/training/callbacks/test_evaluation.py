"""Metrics of past evaluations; how a run evaluates is in tests/training/test_module.py."""

from __future__ import annotations

from pathlib import Path

from support.fixtures import LengthReward, make_stage, tiny_policy

from oar_lightning.evaluation.evaluate import EvaluationConfig
from oar_lightning.rollout.sampling import SamplingConfig
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.training.callbacks.evaluation import EvaluationCallback


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
