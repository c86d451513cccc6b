"""Runs as jobs of a true Slurm: to their end, stopped, preempted, cancelled, out of time, killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.slurm import DDP, Job, Slurm, folder_of, is_whole, needs_slurm, run_of

pytestmark = [pytest.mark.slow, needs_slurm]


@pytest.mark.parametrize(
    ("nodes", "options"),
    [(1, ["--nodes=1", "--ntasks=2"]), (2, ["--nodes=2", "--ntasks-per-node=1"])],
    ids=["one node", "two nodes"],
)
def test_a_run_of_two_ranks_comes_to_its_end(nodes: int, options: list[str], slurm: Slurm, store: str, tmp_path: Path) -> None:
    job = slurm.train(tmp_path, DDP.format(2 // nodes, nodes), *options)
    is_whole(job, tmp_path, store, 4)
    assert job.restarts() == 0
    assert job.said().count("before and after") == 1


SLOWLY = """
import time
def slowly(problems, completions):
    time.sleep({seconds} if len(problems) > 4 else 0)
    return [0.0] * len(problems)
"""


def slow_steps(folder: Path, seconds: float) -> str:
    """Overrides of a run in the folder whose steps take at least so long, on any machine: a reward takes its time."""
    (folder / "slowly.py").write_text(SLOWLY.format(seconds=seconds))
    term = "{_target_:oar_lightning.answers.reward.FunctionReward,path:slowly.slowly}"
    return f"update.problems=4 update.group_size=4 '+reward.terms.slowly={term}'"


def test_told_before_its_time_is_over_a_job_goes_on_in_the_next_start(slurm: Slurm, store: str, tmp_path: Path) -> None:
    long = f"trainer.max_steps=6 {slow_steps(tmp_path, 5)}"
    job = slurm.train(tmp_path, long, "--time=2", "--signal=USR1@95")  # about 25 s after each start
    job.end(900)  # on a busy machine each start has the time for one step alone
    is_whole(job, tmp_path, store, 6)
    assert job.restarts() >= 1
    assert "SIGUSR1" in job.said()


@pytest.mark.parametrize("partition", ["low", "grace", "cancel"])
def test_a_preempted_job_goes_on_where_it_was(partition: str, slurm: Slurm, store: str, tmp_path: Path) -> None:
    """Without grace Slurm queues the job by itself, with grace the run asks for it; "cancel" would end it for good."""
    job = slurm.train(tmp_path, f"trainer.max_steps=25 {slow_steps(tmp_path, 0.5)}", f"--partition={partition}")
    job.wait_for("step 1/25")
    other = slurm.preempt(tmp_path)
    job.wait(lambda: job.restarts() == 1, "it is in the queue again")
    is_whole(job, tmp_path, store, 25)
    assert other.end() == "COMPLETED"
    assert ("Slurm has put the job" in job.said()) == (partition == "low")


@pytest.mark.parametrize("options", [[], ["--signal=INT"]], ids=["scancel", "scancel --signal=INT"])
def test_a_cancelled_job_is_saved_and_not_started_again(options: list[str], slurm: Slurm, store: str, tmp_path: Path) -> None:
    job = slurm.train(tmp_path, "trainer.max_steps=1000")
    job.wait_for("step 1/1000")
    slurm.run("scancel", *options, str(job.number))
    assert job.end() == ("FAILED" if options else "CANCELLED")
    job.wait(lambda: run_of(store)[0] == "KILLED", "the run is closed", 60)
    _, steps = run_of(store)
    run_dir = folder_of(job, tmp_path)
    assert torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == steps[-1] < 1000
    assert ("was cancelled and is not put" in job.said()) == (not options)
    assert job.restarts() == 0
    assert job.record()["JobState"] != "PENDING"


def test_a_killed_rank_ends_all(slurm: Slurm, store: str, tmp_path: Path) -> None:
    job = slurm.train(tmp_path, f"trainer.max_steps=1000 {DDP.format(1, 2)}", "--nodes=2", "--ntasks-per-node=1")
    job.wait_for("step 1/1000")
    (process,) = job.processes("SLURM_PROCID=1")
    os.kill(process, signal.SIGKILL)
    assert job.end(30) == "FAILED"
    assert job.restarts() == 0


def loads(job: Job) -> bool:
    """Hydra has made the folder; what takes long follows."""
    return bool(list(job.log.parent.glob("outputs/smoke/seed0/*")))


def finishes(job: Job) -> bool:
    return "step 4/4 · reward" in job.said()


@pytest.mark.parametrize("moment", [loads, finishes])
def test_a_signal_while_nothing_is_trained_costs_a_start_and_no_more(
    moment: Callable[[Job], bool], slurm: Slurm, store: str, tmp_path: Path
) -> None:
    """While it loads, and in the last evaluation."""
    job = slurm.train(tmp_path, "evaluation.problems=24 evaluation.samples=4 rollout.max_new_tokens=80")
    job.wait(lambda: moment(job), moment.__name__)
    slurm.run("scancel", "--signal=TERM", str(job.number))
    job.wait(lambda: job.restarts() == 1, "it is in the queue again")
    is_whole(job, tmp_path, store, 4)
    assert "SIGTERM while nothing is being trained" in job.said()
    assert job.said().count("before and after") == 1


@pytest.mark.parametrize("moment", [loads, finishes])
def test_warned_while_nothing_is_trained_a_run_uses_the_time_that_is_left(
    moment: Callable[[Job], bool], slurm: Slurm, store: str, tmp_path: Path
) -> None:
    """For one step where it loads, so that it gets somewhere, or for the last evaluation and the export."""
    job = slurm.train(tmp_path, "evaluation.problems=24 evaluation.samples=4 rollout.max_new_tokens=80")
    job.wait(lambda: moment(job), moment.__name__)
    slurm.run("scancel", "--signal=USR1", str(job.number))
    is_whole(job, tmp_path, store, 4)
    assert job.restarts() == (moment is loads)
    assert ("stopped at step 1" in job.said()) == (moment is loads)


def test_cancelled_while_it_loads_a_job_is_not_started_again(slurm: Slurm, tmp_path: Path) -> None:
    job = slurm.train(tmp_path)
    job.wait(lambda: loads(job), "it loads")
    slurm.run("scancel", str(job.number))
    assert job.end() == "CANCELLED"
    assert "was cancelled and is not put" in job.said()
    assert job.restarts() == 0


def test_a_complete_run_that_is_started_again_stays_as_it_is(slurm: Slurm, store: str, tmp_path: Path) -> None:
    job = slurm.train(tmp_path)
    is_whole(job, tmp_path, store, 4)
    slurm.run("scontrol", "requeue", str(job.number))
    job.wait_for("is complete, nothing is left to do")
    is_whole(job, tmp_path, store, 4)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ("", "srun has started 2 ranks on 1 nodes, and this run is for 1 on 1"),
        (DDP.format(1, 1), "set trainer.devices=2 trainer.num_nodes=1"),
        (DDP.format(1, 2), "set trainer.devices=2 trainer.num_nodes=1"),
    ],
)
def test_tasks_and_ranks_have_to_be_as_many(overrides: str, says: str, slurm: Slurm, tmp_path: Path) -> None:
    job = slurm.train(tmp_path, overrides, "--ntasks=2", "--nodes=1")
    assert job.end() == "FAILED"
    assert says in job.said()
    assert "Traceback" not in job.said()
    assert not (tmp_path / "outputs").exists()
