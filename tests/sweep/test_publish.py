"""A study in MLflow: one parent, honest children, and a server that may be away."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from support.fake_sweep import plan, sweep

from oar_lightning.common.config_check import ConfigError
from oar_lightning.sweep.plan import Objective
from oar_lightning.sweep.publish import Mlflow, Store, best_trial
from oar_lightning.sweep.study import SweepStudy
from oar_lightning.sweep.trial import Result, write_run_id

TAGS = {"experiment": "oar_g", "git_revision": "abc", "overrides": "+sweeps=fake"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Callable[[Path], str]) -> Store:
    folder = tmp_path_factory.mktemp("store")
    return Store(empty_store(folder), "oar_lightning", str(folder / "artifacts"))


@pytest.fixture
def study(tmp_path: Path) -> SweepStudy:
    """Three trials: complete, failed, pruned."""
    endings = {1: Result("failed", reason="RuntimeError: no"), 2: Result("pruned", reason="below the median")}
    return sweep(tmp_path, plan(3), ending=lambda claim: endings.get(claim.number))


def child(shown: Mlflow, number: int) -> str:
    """A run as a trial makes it, still running."""
    tags = {"mlflow.parentRunId": shown.parent_run_id, "trial": str(number), "sweep": "fake"}
    return str(shown.client.create_run(shown.experiment_id, tags=tags).info.run_id)


def state(client: MlflowClient, run_id: str) -> tuple[str, str | None, str | None]:
    run = client.get_run(run_id)
    return run.info.status, run.data.tags.get("trial_state"), run.data.tags.get("trial_reason")


def test_children_get_the_state_of_their_trial_and_lost_attempts_are_told(store: Store, study: SweepStudy) -> None:
    shown = Mlflow(store, study, TAGS)
    lost, good, bad, hopeless = (child(shown, number) for number in (0, 0, 1, 2))
    for number, run_id in ((0, good), (1, bad), (2, hopeless)):
        write_run_id(study.trial_folder(number), run_id)
    shown.client.set_terminated(hopeless, "FAILED")  # as Lightning's logger leaves it
    shown.update(study)
    assert state(shown.client, good) == ("FINISHED", "complete", None)
    assert state(shown.client, bad) == ("FAILED", "failed", "RuntimeError: no")
    assert state(shown.client, hopeless) == ("KILLED", "pruned", "below the median")
    status, what, why = state(shown.client, lost)
    assert (status, what) == ("KILLED", "killed")
    assert good in str(why)
    parent = shown.client.get_run(shown.parent_run_id)
    assert parent.info.status == "RUNNING"
    assert {k: parent.data.tags[k] for k in TAGS} == TAGS
    assert [parent.data.metrics[f"trials/{k}"] for k in ("complete", "failed", "pruned")] == [1, 1, 1]
    shown.close(study, "FINISHED")
    assert shown.client.get_run(shown.parent_run_id).info.status == "FINISHED"


def test_a_restart_finds_the_parent_and_another_study_of_that_name_gets_its_own(
    store: Store, study: SweepStudy, tmp_path: Path
) -> None:
    first = Mlflow(store, study, TAGS)
    longer = TAGS | {"overrides": "+sweeps=fake hydra.sweeper.n_trials=60", "git_revision": "def"}
    again = Mlflow(store, study, longer)
    assert again.parent_run_id == first.parent_run_id
    tags = again.client.get_run(again.parent_run_id).data.tags
    assert {key: tags[key] for key in longer} == longer, "those of the last start"
    other = sweep(tmp_path / "other", plan(1))
    assert Mlflow(store, other, TAGS).parent_run_id != first.parent_run_id


def test_a_server_that_goes_away_is_made_up_for_later(
    store: Store, study: SweepStudy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shown = Mlflow(store, study, TAGS)
    run_id = child(shown, 0)
    write_run_id(study.trial_folder(0), run_id)

    for method, error in (
        ("search_runs", MlflowException("Connection refused")),
        ("log_artifacts", ModuleNotFoundError("No module named 'boto3'")),  # as for a store of artifacts in S3
    ):

        def away(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(shown.client, method, away)
            shown.update(study)
        assert f"could not be shown in MLflow ({error})" in caplog.text
    assert (study.folder / "study" / "table.csv").is_file()
    shown.update(study)
    assert state(shown.client, run_id)[1] == "complete"


def test_a_server_that_is_not_there_at_the_start_is_an_error_within_seconds(study: SweepStudy) -> None:
    started = time.monotonic()
    with pytest.raises(ConfigError, match=r"logger\.tracking_uri=http://127\.0\.0\.1:9 cannot be used"):
        Mlflow(Store("http://127.0.0.1:9", "oar_lightning", None), study, TAGS)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(("direction", "values"), [("maximize", (0.3, 0.7, 0.7, 0.5)), ("minimize", (3.0, 1.0, 1.0, 2.0))])
def test_the_best_trial_is_the_first_of_the_best(direction: str, values: Sequence[float], tmp_path: Path) -> None:
    objectives = [Objective("objective", direction)]
    found = sweep(
        tmp_path, plan(4, objectives=objectives), ending=lambda c: Result("complete", {"objective": values[c.number]})
    )
    best = best_trial(found)
    assert best is not None
    assert best.number == 1


def test_what_failed_is_not_the_best_trial(study: SweepStudy) -> None:
    best = best_trial(study)
    assert best is not None
    assert best.number == 0
