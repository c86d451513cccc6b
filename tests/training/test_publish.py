"""A metric reaches every logger, and callbacks find it."""

from __future__ import annotations

import lightning as L
import pytest
from support.fixtures import Recorder, fit, make_module, tiny_policy

from oar_lightning.training.publish import publish


def test_every_logger_gets_every_metric_and_callbacks_find_it() -> None:
    loggers = [Recorder(), Recorder()]
    trainer = L.Trainer(logger=loggers, accelerator="cpu", enable_checkpointing=False, enable_progress_bar=False)
    publish(trainer, {"reward": 0.5}, 3)
    assert [logger.rows for logger in loggers] == [{3: {"reward": 0.5}}] * 2
    assert float(trainer.callback_metrics["reward"]) == 0.5


def test_a_callback_of_a_run_finds_the_step_s_metrics() -> None:
    seen: list[float] = []

    class Look(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *_: object) -> None:
            seen.extend(float(v) for k, v in trainer.callback_metrics.items() if k == "rewards/accuracy")

    rows = fit(make_module(tiny_policy()), 2, [Look()]).rows
    assert seen == pytest.approx([rows[1]["rewards/accuracy"]])
