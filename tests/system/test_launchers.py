"""Runs of two ranks as torchrun, srun and Lightning start them: one folder, one MLflow run, signals, resumption."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient
from support.fake_slurm import fake_scontrol, task
from support.ports import free_port

RANKS = "trainer=ddp trainer.accelerator=cpu trainer.devices=2 num_threads=1"
BRIEF = "evaluation.problems=2 evaluation.greedy=false evaluation.heatmap=false"
FULL = "trainer.precision=32-true"
JOB = ["-m", "oar_lightning", "+experiment=smoke", *RANKS.split(), *BRIEF.split()]

pytestmark = pytest.mark.slow


class Launch:
    """A process, or several that make one job, with what they say in a file."""

    def __init__(self, folder: Path, commands: list[list[str]], environments: list[Mapping[str, str]]) -> None:
        self.log = folder / f"output{len(list(folder.glob('output*')))}.log"
        plain = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI" and not k.startswith("SLURM_")}
        plain |= {"OMP_NUM_THREADS": "1"}
        with self.log.open("a") as log:
            self.processes = [
                subprocess.Popen(c, cwd=folder, env=plain | dict(e), stdout=log, stderr=log, start_new_session=True)
                for c, e in zip(commands, environments, strict=True)
            ]

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 200
        while text not in self.log.read_text():
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            assert all(p.poll() is None for p in self.processes), self.log.read_text()[-3000:]
            time.sleep(0.1)

    def codes(self) -> list[int]:
        return [p.wait(timeout=200) for p in self.processes]

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def launches() -> Iterator[list[Launch]]:
    started: list[Launch] = []
    yield started
    for launch in started:
        launch.end()


def children(pid: int) -> list[int]:
    return [int(n) for t in Path(f"/proc/{pid}/task").iterdir() for n in (t / "children").read_text().split()]


def step_of(checkpoint: Path) -> int:
    return int(torch.load(checkpoint, weights_only=True)["global_step"])


def steps(store: str) -> list[int]:
    """The steps that the only run of a store has logged."""
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("oar_lightning")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    return [m.step for m in client.get_metric_history(run.info.run_id, "reward")]


def test_torchrun_makes_one_run(tmp_path: Path, store: str, launches: list[Launch]) -> None:
    """In the trainer's own precision, bf16-mixed."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    launches.append(Launch(tmp_path, [[*torchrun, *JOB]], [{}]))
    assert launches[0].codes() == [0], launches[0].log.read_text()[-3000:]
    (run_dir,) = tmp_path.glob("outputs/smoke/seed0/*")
    assert step_of(run_dir / "checkpoints" / "last.ckpt") == 4
    assert (run_dir / "policy" / "model.safetensors").exists()
    assert steps(store) == [1, 2, 3, 4]
    assert launches[0].log.read_text().count("before and after") == 1


def test_a_preempted_slurm_job_goes_on_where_it_was(tmp_path: Path, store: str, launches: list[Launch]) -> None:
    scontrol = fake_scontrol(tmp_path)

    def srun(*overrides: str, **variables: str) -> Launch:
        port = free_port()
        commands = [[sys.executable, *JOB, FULL, *overrides]] * 2
        launches.append(Launch(tmp_path, commands, [task(n, 2, port) | scontrol | variables for n in range(2)]))
        return launches[-1]

    first = srun("trainer.max_steps=1000")
    first.wait_for("step 1/1000")
    for process in first.processes:  # Slurm tells all of a job's processes
        process.send_signal(signal.SIGTERM)
    assert first.codes() == [128 + signal.SIGTERM, 0], first.log.read_text()[-3000:]
    assert (tmp_path / "calls").read_text().splitlines() == ["show job 4242", "requeue 4242"]
    checkpoint = tmp_path / "outputs/smoke/seed0/slurm-4242.0/checkpoints/last.ckpt"
    stopped = step_of(checkpoint)
    assert 1 <= stopped < 1000
    again = srun(f"trainer.max_steps={stopped + 2}", SLURM_RESTART_COUNT="1")
    assert again.codes() == [0, 0], again.log.read_text()[-3000:]
    assert f"continuing {checkpoint}" in again.log.read_text()
    assert step_of(checkpoint) == stopped + 2
    assert len(list(tmp_path.glob("outputs/smoke/seed0/*"))) == 1
    assert steps(store) == list(range(1, stopped + 3))


@pytest.mark.parametrize("which", ["first", "other"])
def test_a_signal_to_one_rank_stops_all_and_another_number_of_ranks_goes_on(
    which: str, tmp_path: Path, launches: list[Launch]
) -> None:
    launch = Launch(tmp_path, [[sys.executable, *JOB, FULL, "logger=none", "trainer.max_steps=1000"]], [{}])
    launches.append(launch)
    launch.wait_for("step 1/1000")
    (first,) = (p.pid for p in launch.processes)
    (other,) = (n for n in children(first) if b"+experiment=smoke" in Path(f"/proc/{n}/cmdline").read_bytes())
    os.kill({"first": first, "other": other}[which], signal.SIGTERM)
    assert launch.codes() == [128 + signal.SIGTERM], launch.log.read_text()[-3000:]
    (checkpoint,) = tmp_path.glob("outputs/smoke/seed0/*/checkpoints/last.ckpt")
    stopped = step_of(checkpoint)
    assert 1 <= stopped < 1000
    overrides = [f"trainer.max_steps={stopped + 2}", "resume=true", "logger=none", "trainer.devices=1", "trainer.strategy=auto"]
    alone = Launch(tmp_path, [[sys.executable, *JOB, FULL, *overrides]], [{}])
    launches.append(alone)
    assert alone.codes() == [0], alone.log.read_text()[-3000:]
    assert step_of(checkpoint) == stopped + 2
    assert re.search(rf"continuing .*{checkpoint.parent.parent.name}", alone.log.read_text())


def test_a_rank_ends_with_the_first_though_both_still_load(tmp_path: Path, launches: list[Launch]) -> None:
    """Killed as soon as it has started the other, which has then still to import, load and join."""
    launch = Launch(tmp_path, [[sys.executable, *JOB, FULL, "logger=none"]], [{}])
    launches.append(launch)
    (first,) = (p.pid for p in launch.processes)
    deadline = time.monotonic() + 200
    while not (others := [n for n in children(first) if b"+experiment=smoke" in Path(f"/proc/{n}/cmdline").read_bytes()]):
        assert time.monotonic() < deadline, launch.log.read_text()[-3000:]
        time.sleep(0.05)
    os.kill(first, signal.SIGKILL)
    for _ in range(100):
        if not any(Path(f"/proc/{n}").exists() for n in others):
            return
        time.sleep(0.2)
    raise AssertionError("the other rank lives on")


def test_torchrun_starts_a_run_again_from_its_checkpoint(tmp_path: Path, store: str, launches: list[Launch]) -> None:
    """A rank is killed once. Without torch's variable the new ranks read the addresses of the former ones."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    job = [
        *JOB,
        FULL,
        "checkpoint_every_n_steps=1",
        "trainer.max_steps=40",
        f"hydra.run.dir={tmp_path}/outputs/smoke/seed0/mine",
    ]
    launches.append(Launch(tmp_path, [[*torchrun, "--shutdown-timeout=5", *job]], [own_store]))
    launches[0].wait_for("step 1/40")
    ranks = [n for n in children(launches[0].processes[0].pid) if b"+experiment" in Path(f"/proc/{n}/cmdline").read_bytes()]
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    assert launches[0].codes() == [0], launches[0].log.read_text()[-3000:]
    assert "continuing" in launches[0].log.read_text()
    (run_dir,) = tmp_path.glob("outputs/smoke/seed0/*")
    assert step_of(run_dir / "checkpoints" / "last.ckpt") == 40
    assert sorted(set(steps(store))) == list(range(1, 41))
