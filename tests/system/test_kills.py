"""A run that is killed again and again ends as one that was left alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from oar_lightning.tracking.history import metric_history

STEPS, KILLS = 60, 30


def command(*overrides: str) -> list[str]:
    settings = (f"trainer.max_steps={STEPS}", "checkpoint_every_n_steps=1", "num_threads=1")
    return [sys.executable, "-m", "oar_lightning", "+experiment=smoke", *settings, *overrides]


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"} | {"OMP_NUM_THREADS": "1"}


def start(folder: Path, *overrides: str) -> subprocess.Popen[bytes]:
    output = (folder / "output.log").open("ab")
    return subprocess.Popen(
        command(*overrides), cwd=folder, env=environment(), stdout=output, stderr=output, start_new_session=True
    )


def await_change(path: Path, since: float, process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until the file is newer, the process ends or so much time is over."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        if path.exists() and path.stat().st_mtime > since:
            return
        time.sleep(0.005)


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def histories(folder: Path) -> tuple[Run, dict[str, list[tuple[int, str]]]]:
    """The only run of a store, and the points of all metrics that do not measure time."""
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("oar_lightning")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    keys = [k for k in run.data.metrics if not any(word in k for word in ("time", "seconds", "duration"))]
    return run, {k: [(p.step, repr(p.value)) for p in metric_history(client, run.info.run_id, k)] for k in keys}


@pytest.mark.slow
def test_killed_thirty_times_it_is_bit_identical_to_an_uninterrupted_run(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    assert start(whole).wait(600) == 0, (whole / "output.log").read_text()
    moments, run_dir = random.Random(0), killed / "run"
    checkpoint = run_dir / "checkpoints" / "last.ckpt"
    for number in range(KILLS):
        again = [f"ckpt_path={run_dir}"] if checkpoint.exists() else [f"hydra.run.dir={run_dir}"]
        since = checkpoint.stat().st_mtime if checkpoint.exists() else 0.0
        process = start(killed, *again)
        # every second time it comes to a step, and is killed there or in writing a checkpoint; else mostly in its start
        await_change(checkpoint, since, process, moments.uniform(0.0, 10.0) if number % 2 else 300.0)
        time.sleep(moments.uniform(0.0, 0.1))
        assert process.poll() is None, (killed / "output.log").read_text()[-3000:]
        kill(process)
    assert start(killed, f"ckpt_path={run_dir}").wait(600) == 0, (killed / "output.log").read_text()[-3000:]
    exported = [next(folder.rglob("policy/model.safetensors")).read_bytes() for folder in (whole, killed)]
    assert exported[0] == exported[1]
    (run, points), (expected_run, expected) = histories(killed), histories(whole)
    assert run.info.status == expected_run.info.status == "FINISHED"
    assert points == expected
    assert [step for step, _ in points["reward"]] == list(range(1, STEPS + 1))
