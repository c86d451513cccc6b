"""Loggers beside MLflow: what they are given is in their files, a missing package is named, a broken one ends no run."""

from __future__ import annotations

import csv
import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.fixtures import Recorder

from oar_lightning.tracking.loggers import csv_logger, guarded, tensorboard_logger, trackio_logger, wandb_logger
from oar_lightning.tracking.tracker import Tracker


def test_csv_files_have_a_version_for_each_start(tmp_path: Path) -> None:
    for start in range(2):
        tracker = Tracker(tmp_path, None, [csv_logger(tmp_path / "csv", 2 * start, flush_logs_every_n_steps=1)])
        tracker.describe({"gate": {"tau": 0.5}}, {"a tag": "of MLflow's"})
        tracker.write_metrics({"reward": 0.25}, 2 * start + 1)
        read = rows(tmp_path / "csv" / f"version_{start}" / "metrics.csv")
        assert read == [{"reward": "0.25", "step": str(2 * start + 1)}], "before the end: a kill loses nothing"
        tracker.write_metrics({"objective": 0.5}, 2 * start + 2)
        tracker.close("FINISHED")
        tracker.close("FAILED")
        assert [r["objective"] for r in rows(tmp_path / "csv" / f"version_{start}" / "metrics.csv")] == ["", "0.5"]
        assert "gate.tau: 0.5" in (tmp_path / "csv" / f"version_{start}" / "hparams.yaml").read_text()


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_tensorboard_hides_steps_that_are_run_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for step, values in ((0, (8, 9)), (0, (1, 2, 3, 4)), (2, (30,))):  # the first ended before its first checkpoint
        tracker = Tracker(tmp_path, None, [tensorboard_logger(tmp_path / "tensorboard", step)])
        tracker.describe({"gate": {"tau": 0.5, "none": None}}, {})
        for number, value in enumerate(values, start=step + 1):
            tracker.write_metrics({"reward": float(value)}, number)
        tracker.close("FINISHED")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward")] == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_trackio_gets_metrics_and_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with the calls of Trackio 0.43."""
    calls: list[Any] = []
    run = SimpleNamespace(log=lambda metrics, step: calls.append((metrics, step)), config={})
    stand_in: Any = ModuleType("trackio")
    stand_in.init = lambda **named: calls.append(named) or run
    monkeypatch.setitem(sys.modules, "trackio", stand_in)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("TRACKIO_DIR", "")
    tracker = Tracker(tmp_path, None, [trackio_logger(tmp_path / "trackio", 0, name="mine")])
    tracker.describe({"gate": {"tau": 0.5}}, {})
    tracker.write_metrics({"reward": 0.25}, 1)
    tracker.close("FINISHED")
    assert calls == [{"project": "oar_lightning", "name": "mine", "resume": "allow", "embed": False}, ({"reward": 0.25}, 1)]
    assert run.config == {"gate.tau": 0.5}


@pytest.mark.parametrize(
    ("name", "make"), [("wandb", wandb_logger), ("trackio", trackio_logger), ("tensorboard", tensorboard_logger)]
)
def test_a_missing_package_is_named_with_the_remedy(
    name: str, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ImportError, match=rf"logger={name} needs the optional extra: pip install -e '\.\[{name}\]'"):
        make(tmp_path / name, 0)
    assert not list(tmp_path.iterdir())


def test_a_broken_logger_is_told_of_once_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        calls = 0

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            self.calls += 1
            raise OSError("no space left")

    broken, whole = Broken(), Recorder()
    tracker = Tracker(tmp_path, None, [guarded(broken, "mine"), guarded(whole, "other")])
    with caplog.at_level(logging.ERROR):
        for step in (1, 2):
            tracker.write_metrics({"reward": 1.0}, step)
        tracker.close("FINISHED")
    assert caplog.messages == ["loggers.mine gets nothing more in this run: OSError: no space left"]
    assert broken.calls == 1
    assert set(whole.rows) == {1, 2}
