"""Training ends where the evaluations no longer improve."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from support.fixtures import fit, make_module, tiny_policy

from oar_lightning.common.config_check import ConfigError
from oar_lightning.evaluation.evaluate import EvaluationConfig
from oar_lightning.training.callbacks import EvaluationCallback
from oar_lightning.training.callbacks.checkpoint import LastCheckpoint
from oar_lightning.training.callbacks.early_stopping import EarlyStopping
from oar_lightning.training.publish import offer


class Evaluations(EvaluationCallback):
    """Evaluations with these accuracies, at step 0 and after every second step."""

    def __init__(self, *accuracies: float, every: int = 2) -> None:
        super().__init__({"test": []}, None, None, EvaluationConfig(every_n_steps=every, samples=4), None)  # type: ignore[arg-type]
        self.left = list(accuracies)

    def _run(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        metrics = {"avg_at_4": self.left.pop(0)}
        self.history.append({"step": trainer.global_step, "benchmark": "test", "metrics": metrics})
        offer(trainer, {"eval/test/avg_at_4": metrics["avg_at_4"]})


class Steps(L.Callback):
    last = 0

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.last = trainer.global_step


FALLING = (0.9, 0.5, 0.4, 0.3, 0.2, 0.1)


@pytest.mark.parametrize(
    ("accuracies", "settings", "ended"),
    [
        (FALLING, {}, 6),
        (FALLING, {"mode": "min"}, 8),
        (FALLING, {"mode": "min", "min_delta": 0.2}, 6),
        ((0.1, 0.2, 0.1, 0.3, 0.4, 0.5), {}, 8),
    ],
)
def test_it_ends_after_so_many_evaluations_without_an_improvement(
    accuracies: tuple[float, ...], settings: dict[str, Any], ended: int
) -> None:
    """Accuracy 0.9 before training does not count."""
    evaluations, stopping, steps = Evaluations(*accuracies), EarlyStopping(patience=2, **settings), Steps()
    stopping.check(evaluations)
    assert stopping.monitor == "eval/test/avg_at_4"
    fit(make_module(tiny_policy()), 8, [evaluations, stopping, steps])
    assert steps.last == ended


@pytest.mark.parametrize(
    ("accuracies", "patience", "ended", "message"),
    [
        (
            FALLING,
            2,
            6,
            "has not improved in 2 evaluations, so training has ended at step 6; callbacks.early_stopping.patience=3",
        ),
        (FALLING, 1, 6, "has not improved in 2 evaluations"),
        (FALLING, 4, 10, None),
        (
            (0.9, 0.5, math.nan, 0.6, 0.7),
            2,
            4,
            "was not finite, so training has ended at step 4; go on from an earlier checkpoint",
        ),
    ],
)
def test_a_run_that_it_has_ended_stays_so_when_resumed_unless_with_more_patience(
    accuracies: tuple[float, ...],
    patience: int,
    ended: int,
    message: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after a kill between the last checkpoint and the export."""

    def run(patience: int, left: tuple[float, ...], ckpt_path: str | None = None) -> int:
        evaluations, stopping, steps = Evaluations(*left), EarlyStopping(patience=patience), Steps()
        stopping.check(evaluations)
        fit(make_module(tiny_policy()), 10, [evaluations, stopping, steps, LastCheckpoint(tmp_path, 100)], ckpt_path)
        return steps.last

    first = run(2, accuracies)
    assert max(first, run(patience, accuracies[1 + first // 2 :], str(tmp_path / "last.ckpt"))) == ended
    told = [record.getMessage() for record in caplog.records if "early_stopping" in record.name]
    assert len(told) == (message is not None)
    assert all(message in text for text in told if message is not None)


def test_an_unknown_metric_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"callbacks\.early_stopping\.monitor=reward is no .* eval/test/avg_at_4, eval/test/pass"
    ):
        EarlyStopping("reward").check(Evaluations())


@pytest.mark.parametrize("settings", [{"patience": 0}, {"min_delta": -0.1}])
def test_bad_settings_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"callbacks\.early_stopping\.{next(iter(settings))} must be .*>= "):
        EarlyStopping(**settings)


def test_without_evaluations_in_between_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"callbacks=early_stopping .* set evaluation\.every_n_steps"):
        EarlyStopping().check(Evaluations(every=0))


def test_a_metric_is_known_at_the_steps_of_evaluations() -> None:
    evaluations = Evaluations()
    evaluations.history = [{"step": 4, "benchmark": "test", "metrics": {"avg_at_4": 0.5}}]
    assert evaluations.value("eval/test/avg_at_4", 4) == 0.5
    assert evaluations.value("eval/test/avg_at_4", 5) is None
