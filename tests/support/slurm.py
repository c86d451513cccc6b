"""A true Slurm of two virtual nodes on this machine, for slow tests; `slurm_loopback.sh` beside this file starts it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient

SCRIPT = Path(__file__).with_name("slurm_loopback.sh")

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")

HEAD = """#!/bin/bash
#SBATCH --requeue --open-mode=append
export MASTER_ADDR=127.0.0.1 OMP_NUM_THREADS=1
"""
"""Of every job. The address: no hosts file has the virtual nodes."""

JOB = (
    "-m oar_lightning +experiment=smoke evaluation.problems=2 evaluation.samples=1 evaluation.greedy=false "
    "evaluation.heatmap=false num_threads=1 rollout.max_new_tokens=24 divergence.max_silent_steps=null"
)
"""The smallest run: four steps."""

DDP = "trainer=ddp trainer.accelerator=cpu trainer.precision=32-true trainer.devices={} trainer.num_nodes={}"

missing = [p for p in PROGRAMS if shutil.which(p, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]

needs_slurm = pytest.mark.skipif(
    bool(missing), reason=f"no Slurm here ({', '.join(missing)}); Debian: apt-get install slurm-wlm munge"
)


@dataclass(frozen=True)
class Job:
    """A job in Slurm's queue; what it says is in `log`."""

    slurm: Slurm
    number: int
    log: Path

    def record(self) -> dict[str, str]:
        """What `scontrol show job` says of it."""
        return dict(re.findall(r"(\w+)=(\S+)", self.slurm.run("scontrol", "show", "job", str(self.number))))

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait(self, done: Callable[[], bool], what: str, seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}; {self.record()}; {self.said()[-3000:]}"
            time.sleep(0.3)

    def wait_for(self, text: str, times: int = 1) -> None:
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
        self.wait(lambda: self.said().count(text) >= times or self.record()["JobState"] in ended, text)
        assert self.said().count(text) >= times, f"{self.record()}; {self.said()[-3000:]}"

    def end(self, seconds: float = 300) -> str:
        """Wait for its end; returns the state."""
        states = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
        self.wait(lambda: self.record()["JobState"] in states, "its end", seconds)
        return self.record()["JobState"]

    def restarts(self) -> int:
        return int(self.record()["Restarts"])

    def processes(self, variable: str) -> list[int]:
        """Its processes that run the program with this variable (name=value)."""
        wanted = {f"SLURM_JOB_ID={self.number}".encode(), variable.encode()}
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                inside = wanted <= set((folder / "environ").read_bytes().split(b"\0"))
                if inside and b"oar_lightning" in (folder / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it has ended, or is another user's
                continue
        return found


@dataclass(frozen=True)
class Slurm:
    """A Slurm at work; `folder` has its settings and logs."""

    folder: Path

    def environment(self) -> dict[str, str]:
        plain = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI" and not k.startswith("SLURM_")}
        return plain | {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }

    def run(self, *command: str) -> str:
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=True, timeout=60).stdout

    def submit(self, folder: Path, script: str, *options: str) -> Job:
        """Submit the lines of a job, run in `folder`."""
        file = folder / f"job{len(list(folder.glob('job*.sh')))}.sh"
        file.write_text(HEAD + script + "\n")
        log = file.with_suffix(".log")
        number = self.run("sbatch", "--parsable", f"--chdir={folder}", f"--output={log}", *options, str(file))
        return Job(self, int(number), log)

    def train(self, folder: Path, overrides: str = "", *options: str) -> Job:
        """Submit a run of one task, or of as many as the options say."""
        return self.submit(folder, f"srun --kill-on-bad-exit=1 {sys.executable} {JOB} {overrides}", *options)

    def preempt(self, folder: Path) -> Job:
        """Submit a job of a higher partition that takes both nodes for a moment."""
        return self.submit(folder, "sleep 1", "--partition=high", "--nodes=2", "--exclusive")


def run_of(store: str) -> tuple[str, list[int]]:
    """The status of the only run of a store, and the steps that it has logged."""
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("oar_lightning")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    return run.info.status, [m.step for m in client.get_metric_history(run.info.run_id, "reward")]


def folder_of(job: Job, folder: Path) -> Path:
    """The job's run folder, and no other beside it."""
    (found,) = folder.glob("outputs/smoke/seed0/*")
    assert found.name == f"slurm-{job.number}.0"
    return found


def is_whole(job: Job, folder: Path, store: str, steps: int) -> None:
    """The job is done: all steps once, in one folder and one MLflow run, and the policy exported."""
    assert job.end() == "COMPLETED", job.said()[-3000:]
    run_dir = folder_of(job, folder)
    assert run_of(store) == ("FINISHED", list(range(1, steps + 1)))
    assert torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == steps
    assert (run_dir / "policy" / "model.safetensors").exists()
    assert "scontrol requeue" not in job.said()
    assert "Traceback" not in job.said()
