"""Sweeps whose trials are jobs of a true Slurm, started by submitit."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from support.slurm import DDP, JOB, Slurm, needs_slurm

pytest.importorskip("submitit", reason="no submitit here; pip install -e '.[sweep]'")

pytestmark = [pytest.mark.slow, needs_slurm]

SWEEP = (
    "+sweeps=smoke hydra/launcher=submitit_slurm hydra.launcher.partition=low hydra.launcher.timeout_min=30 "
    "hydra.sweeper.n_jobs=2 hydra.sweeper.n_trials=2 checkpoint_every_n_steps=1"
)


class Controller:
    """The process of a sweep's command."""

    def __init__(self, slurm: Slurm, folder: Path, overrides: str) -> None:
        self.log = folder / f"controller{len(list(folder.glob('controller*')))}.log"
        command = [
            sys.executable,
            *JOB.replace("oar_lightning", "oar_lightning -m", 1).split(),
            *SWEEP.split(),
            *overrides.split(),
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=slurm.environment(), stdout=log, stderr=log)

    def wait_for_trials(self, slurm: Slurm, folder: Path, text: str) -> None:
        deadline = time.monotonic() + 300
        while sum(text in said for said in outputs(folder)) < 2:
            assert time.monotonic() < deadline, f"{text}: {outputs(folder)}; {self.log.read_text()[-3000:]}"
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.3)


def outputs(folder: Path) -> list[str]:
    """What each trial has said."""
    return [path.read_text() for path in folder.glob("outputs/sweeps/*/trial_*/*.log")]


@pytest.fixture
def controllers() -> Iterator[list[Controller]]:
    started: list[Controller] = []
    yield started
    for controller in started:
        if controller.process.poll() is None:
            controller.process.kill()
            controller.process.wait()


def trials(store: str) -> list[tuple[str, str, list[int]]]:
    """Of each trial in MLflow: its number, its state, its steps."""
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("oar_lightning")
    assert experiment is not None
    runs = [run for run in client.search_runs([experiment.experiment_id]) if "trial" in run.data.tags]
    return sorted(
        (
            run.data.tags["trial"],
            run.data.tags["trial_state"],
            sorted({m.step for m in client.get_metric_history(run.info.run_id, "reward")}),
        )
        for run in runs
    )


def jobs(slurm: Slurm) -> list[str]:
    """The jobs that are at work or wait, as <array>_<number of the trial>."""
    return slurm.run("squeue", "--noheader", "--array", "--format=%i").split()


def test_a_sweep_whose_controller_is_killed_has_its_number_of_trials(
    slurm: Slurm, store: str, tmp_path: Path, controllers: list[Controller]
) -> None:
    controllers.append(Controller(slurm, tmp_path, "trainer.max_steps=20"))
    controllers[0].wait_for_trials(slurm, tmp_path, "step 1/20")
    controllers[0].process.send_signal(signal.SIGKILL)
    controllers.append(Controller(slurm, tmp_path, "trainer.max_steps=20"))
    assert controllers[1].process.wait(600) == 0, controllers[1].log.read_text()[-3000:]
    assert trials(store) == [(str(n), "complete", list(range(1, 21))) for n in range(2)]


def test_a_lost_job_is_started_again_and_the_other_trial_counts(
    slurm: Slurm, store: str, tmp_path: Path, controllers: list[Controller]
) -> None:
    controllers.append(Controller(slurm, tmp_path, "trainer.max_steps=20"))
    controllers[0].wait_for_trials(slurm, tmp_path, "step 1/20")
    slurm.run("scancel", "--signal=KILL", min(jobs(slurm)))
    assert controllers[0].process.wait(600) == 0, controllers[0].log.read_text()[-3000:]
    assert trials(store) == [(str(n), "complete", list(range(1, 21))) for n in range(2)]
    assert "trial 0 has ended without a result" in controllers[0].log.read_text()
    assert "trial 1 has ended without a result" not in controllers[0].log.read_text()


def test_a_trial_whose_time_is_over_goes_on_where_that_is_allowed(
    slurm: Slurm, store: str, tmp_path: Path, controllers: list[Controller]
) -> None:
    """Trials of two ranks, which start the second one themselves."""
    overrides = f"trainer.max_steps=20 hydra.launcher.max_num_timeout=3 {DDP.format(2, 1)}"
    controllers.append(Controller(slurm, tmp_path, overrides))
    controllers[0].wait_for_trials(slurm, tmp_path, "step 1/20")
    for job in jobs(slurm):
        slurm.run("scancel", "--signal=USR2", job)  # as submitit has Slurm do before the time is over
    assert controllers[0].process.wait(600) == 0, controllers[0].log.read_text()[-3000:]
    assert trials(store) == [(str(n), "complete", list(range(1, 21))) for n in range(2)]
