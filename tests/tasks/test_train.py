"""Runs that are killed before their first checkpoint or after their last one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import lightning as L
import pytest
import torch
from mlflow import MlflowClient
from support.composing import Prepare, composed_whole
from support.killed import killed

from oar_lightning.common.config_check import ConfigError
from oar_lightning.sweep.trial import FOLDER_VARIABLE, Ticket, write_ticket
from oar_lightning.tasks import train
from oar_lightning.tracking.history import metric_history

SMALL = (
    "+experiment=smoke",
    "evaluation.problems=2",
    "evaluation.greedy=false",
    "evaluation.heatmap=false",
    "rollout.max_new_tokens=40",
    "trainer.max_steps=2",
    "checkpoint_every_n_steps=1",
)


def steps_of(store: str) -> tuple[str, list[int]]:
    """The status of the store's only run, and the steps of its rewards."""
    client = MlflowClient(store)
    (run,) = client.search_runs(["1"])
    return run.info.status, [point.step for point in metric_history(client, run.info.run_id, "reward")]


def test_a_run_killed_before_its_export_is_finished_by_resuming(prepared: Prepare, store: str, tmp_path: Path) -> None:
    run = tmp_path / "outputs" / "smoke" / "seed0" / "run0"
    killed(lambda: prepared(*SMALL), train, "export_policy")
    assert not (run / "policy").exists()
    assert prepared(*SMALL, f"ckpt_path={run}")() is not None
    assert (run / "policy" / "model.safetensors").exists()
    assert steps_of(store) == ("FINISHED", [1, 2])
    assert "objective" in MlflowClient(store).search_runs(["1"])[0].data.metrics
    with pytest.raises(ConfigError, match=r"is at step 2 and trainer\.max_steps=2: nothing is left to do"):
        prepared(*SMALL, f"ckpt_path={run}")


def test_a_run_killed_after_an_early_stop_is_finished_by_resuming(prepared: Prepare, store: str, tmp_path: Path) -> None:
    short = (*SMALL, "trainer.max_steps=5", "evaluation.every_n_steps=1", "callbacks=early_stopping")
    short = (
        *short,
        "callbacks.early_stopping.patience=1",
        "callbacks.early_stopping.min_delta=2",
    )  # no accuracy rises by so much
    run = tmp_path / "outputs" / "smoke" / "seed0" / "run0"
    killed(lambda: prepared(*short), train, "export_policy")
    assert prepared(*short, f"ckpt_path={run}")() is not None
    assert (run / "policy" / "model.safetensors").exists()
    assert steps_of(store) == ("FINISHED", [1, 2])


def test_a_complete_run_that_went_back_is_complete_again_at_its_end_only(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before its end and started again by Slurm it has the rest left to do."""
    short = (*SMALL, "logger=none", "checkpoints.last=2")
    killed(lambda: prepared(*short, folder="run0"), train, "report")  # which comes when all is done
    run = tmp_path / "outputs" / "smoke" / "seed0" / "run0"
    (earlier,) = (path for path in run.glob("checkpoints/kept_*") if torch.load(path, weights_only=True)["global_step"] == 1)
    assert json.loads((run / "finished.json").read_text())["step"] == 2
    killed(lambda: prepared(*short, f"ckpt_path={earlier}", folder="run0"), train, "export_policy")
    assert not (run / "finished.json").exists()
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert prepared(*short, folder="run0")() is not None
    assert json.loads((run / "finished.json").read_text())["step"] == 2
    assert prepared(*short, folder="run0")() is None


def test_a_job_that_went_back_in_another_folder_goes_on_there_when_slurm_starts_it_again(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it would go back to the older checkpoint at each start, and what it had trained since would be lost."""
    caplog.set_level("INFO")
    short = (*SMALL, "logger=none", "checkpoints.last=4")
    killed(lambda: prepared(*short, folder="run0"), train, "report")  # which comes when all is done
    run = tmp_path / "outputs" / "smoke" / "seed0" / "run0"
    (earlier,) = (path for path in run.glob("checkpoints/kept_*") if torch.load(path, weights_only=True)["global_step"] == 1)
    longer = (*short, "trainer.max_steps=3", f"ckpt_path={earlier}")
    killed(lambda: prepared(*longer, folder="job"), train, "fit")
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    killed(lambda: prepared(*longer, folder="job"), train, "export_policy")  # from step 1: it had not begun
    kept = sorted(torch.load(path, weights_only=True)["global_step"] for path in run.glob("checkpoints/kept_*"))
    assert kept == [1, 2, 3]
    assert prepared(*longer, folder="job")() is not None
    assert f"continuing {run / 'checkpoints' / 'last.ckpt'}" in caplog.text
    assert f"continuing {earlier}" not in caplog.text, "that is what the killed processes told"
    assert json.loads((run / "finished.json").read_text())["step"] == 3
    assert prepared(*longer, folder="job")() is None, "it is complete"


def test_a_run_with_another_ones_state_killed_before_its_first_checkpoint_is_begun_again_as_itself(
    prepared: Prepare, store: str, tmp_path: Path
) -> None:
    prepared(*SMALL, folder="run0")()
    folder = tmp_path / "outputs" / "smoke" / "seed0"
    other = (*SMALL, "trainer.max_steps=3", "gate.tau=0.9")
    fork = (*other, f"ckpt_path={folder / 'run0'}", "resume_changed=true")
    killed(lambda: prepared(*fork, folder="fork"), L.Trainer, "save_checkpoint")
    with pytest.raises(ConfigError, match=r"fork holds a run that began with the state of another one \(step 2\)"):
        prepared(*other, folder="fork")
    prepared(*fork, folder="fork")()
    client = MlflowClient(store)
    runs = client.search_runs(["1"], order_by=["attributes.start_time"])
    assert [run.info.status for run in runs] == ["FINISHED", "FINISHED"]
    assert runs[1].data.tags["resumed_from_run"] == runs[0].info.run_id
    assert [point.step for point in metric_history(client, runs[1].info.run_id, "reward")] == [3]
    origin = json.loads((folder / "fork" / "artifacts" / "origin.json").read_text())
    assert origin["parent"]["step"] == 2


def test_a_run_killed_before_its_first_checkpoint_goes_on_in_its_mlflow_run(
    prepared: Prepare, store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "outputs" / "smoke" / "seed0" / "run0"
    killed(lambda: prepared(*SMALL), L.Trainer, "save_checkpoint")
    assert not (run / "checkpoints" / "last.ckpt").exists()
    with caplog.at_level("INFO"):
        prepared(*SMALL, folder="run0")()
    assert "run0 again, which ended before its first checkpoint" in caplog.text
    assert steps_of(store) == ("FINISHED", [1, 2])
    client = MlflowClient(store)
    (of_both,) = client.search_runs(["1"])
    accuracy = "eval/chain/avg_at_2"
    assert [point.step for point in client.get_metric_history(of_both.info.run_id, accuracy)].count(0) == 2, "of each start"
    assert [point.step for point in metric_history(client, of_both.info.run_id, accuracy)] == [0, 2]


@pytest.mark.usefixtures("hydra_conf")
def test_a_stopped_run_says_how_to_go_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    composed_whole("+experiment=smoke", "seed=1", "name=my run")
    assert train.how_to_go_on(tmp_path) == f"; to go on, repeat the command with resume=true, or ckpt_path={tmp_path}"
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    own = f"python -m oar_lightning +experiment=smoke seed=1 'name=my run' ckpt_path={tmp_path}"
    assert train.how_to_go_on(tmp_path) == f"; to go on with this job of the grid: {own}"
    write_ticket(tmp_path, Ticket("probe", 0, 1, {}, "sqlite:///study.db"))
    assert train.how_to_go_on(tmp_path) == ""


@pytest.mark.slow
def test_another_config_in_such_a_folder_is_another_run(prepared: Prepare, store: str, tmp_path: Path) -> None:
    killed(lambda: prepared(*SMALL), L.Trainer, "save_checkpoint")
    prepared(*SMALL, "gate.tau=0.9", folder="run0")()
    # by their names, which a run has from its first moment; the killed one's parameters may still be in its journal alone
    names = [run.data.tags["mlflow.runName"] for run in MlflowClient(store).search_runs(["1"])]
    assert sorted("tau=0.9" in name for name in names) == [False, True]


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_checkpoint_leaves_nothing_in_the_temporary_folder(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    killed(lambda: prepared(*SMALL), os, "replace")
    left = [path.name for path in temporary.rglob("*") if path.is_file() and path.stat().st_size > 100_000]
    assert left == []
