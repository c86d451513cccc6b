"""Sweeps as a user runs them: true training, true MLflow store, one process a trial."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import optuna
import psutil
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from support.commands import MODULE, Done, environment, run

from oar_lightning.sweep.storage import SweepStorage

TINY = ["num_threads=1", "evaluation.greedy=false", "evaluation.heatmap=false"]


def runs(folder: Path) -> tuple[Run, list[Run]]:
    """The parent and its children in the store."""
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("oar_lightning")
    found = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in found if run.data.tags.get("kind") == "sweep"]
    children = [run for run in found if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(children) == len(found) - 1, "there is no run besides"
    return parent, children


def test_a_sweep_file_without_m_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "+experiment=oar_g", "+sweeps=smoke")
    assert done.code == 1
    assert "needs -m (--multirun): python -m oar_lightning -m +experiment=oar_g +sweeps=smoke" in done.shown
    assert "Traceback" not in done.shown


@pytest.mark.parametrize(
    "swept", ["gate.tua=choice(0.1,0.2)", "gate.tau=choice(0.1,5)", "gate.tau=interval(0.1,5)", "export_to=a"]
)
def test_a_sweep_that_cannot_run_leaves_nothing_behind(tmp_path: Path, swept: str) -> None:
    done = run(tmp_path, "-m", "+experiment=oar_g", "+sweeps=smoke", swept)
    assert done.code == 1
    assert swept.partition("=")[0] in done.shown
    assert "Traceback" not in done.shown
    assert not list(tmp_path.iterdir())


def test_resume_in_a_sweep_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "+experiment=oar_g", "+sweeps=smoke", "resume=true")
    assert done.code == 1
    assert "a sweep's trials go on from their own checkpoints when its command is repeated; leave it out" in done.shown
    assert not list(tmp_path.iterdir())


def test_a_mistake_that_only_the_policy_shows_burns_no_trial(tmp_path: Path, empty_store: Callable[[Path], str]) -> None:
    """The sweep ends with the first trial, and the corrected command is free to begin the study."""
    empty_store(tmp_path)
    done = run(tmp_path, "-m", "+experiment=oar_g", "+sweeps=smoke", "policy=hf", "policy.name=./nothing", *TINY)
    assert done.code == 1
    assert "policy.name=./nothing" in done.shown
    assert "(trial 0, the first; nothing is recorded)" in done.shown
    assert "Traceback" not in done.shown
    assert not optuna.get_all_study_summaries(SweepStorage(tmp_path / "optuna.db"))
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    assert not client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert not list(tmp_path.glob("outputs/**/trial_*"))


@pytest.fixture(scope="module")
def two_trials(
    tmp_path_factory: pytest.TempPathFactory, empty_store: Callable[[Path], str]
) -> tuple[Path, Sequence[str], Done]:
    """A grid of two: one trial that trains, and one whose steps are so large that its policy says nothing any more."""
    folder = tmp_path_factory.mktemp("two")
    empty_store(folder)
    grid = ["hydra/sweeper/sampler=grid", "gate.tau=0.4", "gate.beta=2", "optimizer.lr=choice(3e-4,1e30)"]
    grid.append("divergence.collapse=0.1")
    arguments = ["-m", "+experiment=oar_g", "+sweeps=smoke", "trainer.max_steps=2", *grid, *TINY]
    return folder, arguments, run(folder, *arguments, timeout=200)


@pytest.mark.slow
def test_a_diverged_trial_is_a_failed_one_with_its_reason(
    two_trials: tuple[Path, Sequence[str], Done],
) -> None:
    folder, _, done = two_trials
    assert done.code == 0, done.shown
    parent, children = runs(folder)
    assert (parent.info.status, parent.info.run_name, parent.data.tags["sweep"]) == ("FINISHED", "smoke", "smoke")
    assert parent.data.metrics["trials/complete"] == parent.data.metrics["trials/failed"] == 1
    good, bad = sorted(children, key=lambda run: int(run.data.tags["trial"]))
    assert (good.info.status, good.data.tags["trial_state"]) == ("FINISHED", "complete")
    assert (bad.info.status, bad.data.tags["trial_state"]) == ("FAILED", "failed")
    assert bad.data.metrics["time/total_cpu_s"] > 0
    assert bad.data.tags["trial_reason"]
    assert bad.data.tags["trial_reason"] in done.shown
    assert json.loads(good.data.tags["swept"]) == {"optimizer.lr": 3e-4}
    assert good.data.params["optimizer.lr"] == "0.0003"
    for key in ("experiment", "scorer", "seed", "git_revision", "overrides"):
        assert good.data.tags[key]
    metrics = good.data.metrics
    assert 0 <= metrics["objective_low"] <= metrics["objective"] <= metrics["objective_high"] <= 1
    phases = sum(metrics[f"time/total_{phase}_s"] for phase in ("generate", "reward", "score", "logprobs", "update"))
    assert 0 < phases < metrics["time/total_s"]
    assert parent.data.metrics["best_objective"] == metrics["objective"]


@pytest.mark.slow
def test_the_parent_has_the_table_and_the_figures(
    two_trials: tuple[Path, Sequence[str], Done],
) -> None:
    folder, *_ = two_trials
    parent, _ = runs(folder)
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    assert {"table.csv", "table.json", "times.csv", "history.png"} <= {
        a.path for a in client.list_artifacts(parent.info.run_id)
    }
    text = Path(client.download_artifacts(parent.info.run_id, "table.csv")).read_text()
    assert [line.split(",")[:3] for line in text.splitlines()] == [
        ["trial", "state", "optimizer.lr"],
        ["0", "complete", "0.0003"],
        ["1", "failed", "1e+30"],
    ]


@pytest.mark.slow
def test_started_again_a_finished_sweep_does_nothing(
    two_trials: tuple[Path, Sequence[str], Done],
) -> None:
    folder, arguments, _ = two_trials
    again = run(folder, *arguments, timeout=200)
    assert again.code == 0, again.shown
    assert "2 of 2 trials are finished" in again.shown
    assert len(runs(folder)[1]) == 2
    other = run(folder, *arguments, "logger.experiment_name=elsewhere", timeout=200)
    assert other.code == 1
    assert "logger.experiment_name=elsewhere (then " in other.shown


@pytest.mark.slow
def test_jobs_of_a_grid_are_as_if_run_alone(tmp_path: Path) -> None:
    grid = run(tmp_path, "-m", "+experiment=smoke", "seed=0,1", *TINY, timeout=200)
    assert grid.code == 0, grid.shown
    alone = run(tmp_path, "+experiment=smoke", "seed=1", "name=alone", *TINY, timeout=200)
    assert alone.code == 0, alone.shown
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("oar_lightning")
    found = {(r.data.tags["experiment"], r.data.tags["seed"]): r for r in client.search_runs([experiment.experiment_id])}
    assert sorted(found) == [("alone", "1"), ("smoke", "0"), ("smoke", "1")]
    for metric in ("objective", "loss", "entropy", "reward"):
        assert found["smoke", "1"].data.metrics[metric] == found["alone", "1"].data.metrics[metric]
    assert found["smoke", "0"].data.metrics["entropy"] != found["smoke", "1"].data.metrics["entropy"]


@pytest.mark.slow
def test_a_hopeless_trial_is_pruned(tmp_path: Path) -> None:
    """The later two trials' steps are far too large; those of the first two leave the accuracy as it is."""
    pruning = ["hydra.sweeper.n_trials=4", "hydra.sweeper.pruning.enabled=true", "hydra.sweeper.pruning.startup_trials=2"]
    grid = ["hydra/sweeper/sampler=grid", "optimizer.lr=choice(1e-6,0.3)", "gate.tau=choice(0.3,0.5)", "gate.beta=2"]
    done = run(tmp_path, "-m", "+experiment=oar_g", "+sweeps=smoke", *grid, *pruning, *TINY, timeout=400)
    assert done.code == 0, done.shown
    _, children = runs(tmp_path)
    states = {int(r.data.tags["trial"]): (r.info.status, r.data.tags["trial_state"]) for r in children}
    assert states == {i: ("FINISHED", "complete") if i < 2 else ("KILLED", "pruned") for i in range(4)}
    assert all("worse than the median" in r.data.tags["trial_reason"] for r in children if int(r.data.tags["trial"]) > 1)


def kill(process: subprocess.Popen[bytes], tree: bool) -> None:
    """Kill -9 a sweep, alone or with all that it has started."""
    victims = psutil.Process(process.pid).children(recursive=True) if tree else []
    process.kill()
    for victim in victims:
        victim.kill()
    process.wait()


@pytest.mark.slow
def test_killed_three_times_it_holds_what_an_uninterrupted_one_does(tmp_path: Path) -> None:
    arguments = ["-m", "+experiment=oar_g", "+sweeps=smoke", "hydra.sweeper.n_trials=12", *TINY]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    moments = random.Random(0)
    for tree in (False, True, True):
        process = subprocess.Popen([*MODULE, *arguments], cwd=killed, env=environment())
        time.sleep(moments.uniform(10, 50))
        assert process.poll() is None, "it should be at work still"
        kill(process, tree)
    for folder in (killed, whole):
        last = run(folder, *arguments, timeout=1500)
        assert last.code == 0, last.shown
    table = {
        folder: (folder / "outputs" / "sweeps" / "smoke" / "study" / "table.csv").read_text() for folder in (whole, killed)
    }
    assert table[killed] == table[whole]
    study = optuna.load_study("smoke", SweepStorage(killed / "optuna.db"))
    assert [t.state.name for t in study.trials] == ["COMPLETE"] * 12
    parent, children = runs(killed)
    assert parent.info.status == "FINISHED"
    finished = [run for run in children if run.info.status == "FINISHED"]
    assert sorted(int(run.data.tags["trial"]) for run in finished) == list(range(12))
    others = [run for run in children if run.info.status != "FINISHED"]
    assert all((run.info.status, run.data.tags["trial_state"]) == ("KILLED", "killed") for run in others)
    assert all("interrupted" in run.data.tags["trial_reason"] for run in others)
    attempts = sum(int(run.data.tags["trial_attempts"]) > 1 for run in finished)
    assert 1 <= attempts <= 3, "trials that were in flight were repeated, no others"
