"""Settings of the MLflow store that no run can have, and stores that do not have what is asked of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from support.mlflow_stores import HttpStore

from oar_lightning.common.config_check import ConfigError
from oar_lightning.tracking.mlflow_store import MLflowConfig, check_store, unreachable


@pytest.mark.parametrize(("key", "value"), [("max_stall_s", -1.0), ("deliver_every_s", 0.0), ("max_stall_s", float("nan"))])
def test_bad_seconds_are_refused(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"logger.{key} is a number of seconds"):
        MLflowConfig("sqlite:///x.db", **{key: value})


@pytest.mark.parametrize("name", ["", " ", "a/b", "a:b"])
def test_names_that_a_registry_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"logger.register_as={name} names a model"):
        MLflowConfig("sqlite:///x.db", register_as=name)


def test_a_server_without_a_registry_is_told_before_the_run(server: HttpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise MlflowException("API request to endpoint /registered-models/search failed with error code 404")

    monkeypatch.setattr(MlflowClient, "search_registered_models", missing)
    with pytest.raises(ConfigError, match=r"logger.register_as=ours: .* has no model registry that answers .*leave"):
        check_store(MLflowConfig(server.address, register_as="ours"))


@pytest.mark.parametrize("asked", ["first", "./first/", "file://{folder}/first"])
def test_an_experiment_keeps_its_artifact_location(
    asked: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    MlflowClient(store).create_experiment("kept", asked.format(folder=tmp_path))
    check_store(MLflowConfig(store, "kept", artifact_location=asked.format(folder=tmp_path)))
    check_store(MLflowConfig(store, "kept"))
    check_store(MLflowConfig(store, "new", artifact_location="other"))
    with pytest.raises(ConfigError, match=r"artifact_location=other: the experiment kept keeps .*/first; .*another"):
        check_store(MLflowConfig(store, "kept", artifact_location="other"))


def test_a_new_database_has_no_experiment_to_disagree_with(tmp_path: Path) -> None:
    check_store(MLflowConfig(f"sqlite:///{tmp_path}/new.db", artifact_location="any"))
    assert not (tmp_path / "new.db").exists()


def test_a_password_in_the_address_is_not_shown() -> None:
    message = unreachable("http://me:secret@host", OSError("http://me:secret@host/api is away"), "http://me:secret@other")
    assert "secret" not in message
    assert message.startswith("logger.tracking_uri=http://host cannot be used (")


def test_system_metrics_without_psutil_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"logger.system_metrics=true needs psutil: pip install psutil"):
        check_store(MLflowConfig("sqlite:///x.db", system_metrics=True))
