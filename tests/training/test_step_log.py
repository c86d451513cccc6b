"""The log of a step: the clock of its phases, and a disk that is full."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from support.fixtures import Recorder, fit, make_module, tiny_policy

from oar_lightning.training.callbacks import LastCheckpoint
from oar_lightning.training.step_log import PhaseClock


def test_the_clock_counts_laps_and_carries_them_to_the_next_step() -> None:
    clock = PhaseClock()
    clock.before |= {"update": 10.0}
    clock.current.update({"generate": 2.0})
    time.sleep(0.05)
    clock.start()  # what came before is not the update's
    clock.lap()
    assert clock.totals()["update"] == pytest.approx(10, abs=0.04)
    time.sleep(0.05)
    clock.lap()
    assert clock.totals()["update"] >= 10.05
    total = clock.totals()
    clock.next_step()
    assert (clock.totals(), clock.current) == (total, {})
    assert total["generate"] == 2


@pytest.mark.parametrize("at", [2, 4])
def test_metrics_that_cannot_be_written_end_training_after_the_steps_checkpoint(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Recorder.log_metrics

    def full(self: Recorder, metrics: dict[str, float], step: int) -> None:
        if step == at:
            raise OSError(28, "No space left on device")
        write(self, metrics, step)

    monkeypatch.setattr(Recorder, "log_metrics", full)
    with pytest.raises(OSError, match="No space left"):
        fit(make_module(tiny_policy()), 4, [LastCheckpoint(tmp_path, 1)])
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == at
