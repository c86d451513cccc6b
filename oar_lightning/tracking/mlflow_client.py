"""Clients of MLflow's stores that succeed or fail within seconds."""

from __future__ import annotations

import contextlib
import os

from mlflow import MlflowClient
from mlflow.entities import LifecycleStage
from mlflow.exceptions import MlflowException

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.locks import FileLock
from oar_lightning.common.paths import local_database

# MLflow's own seven retries would take minutes; callers here retry by themselves, or report the error
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")


def connect(tracking_uri: str) -> MlflowClient:
    """A client whose store exists and answers.

    Raises:
        MlflowException: where the store cannot be read or the server does not answer.
    """
    with contextlib.ExitStack() as stack:
        if (database := local_database(tracking_uri)) is not None:
            # processes that create the same SQLite database at the same time would disturb each other
            lock = FileLock(database.with_name(f"{database.name}.lock"))
            try:
                stack.enter_context(lock)
            except OSError:
                if not database.exists():  # else it may be one that can only be read, in a folder that cannot be written
                    raise
        client = MlflowClient(tracking_uri)  # creates the tables
        client.search_experiments(max_results=1)  # fails where a server does not answer
    return client


def experiment_id(client: MlflowClient, name: str, artifact_location: str | None) -> str:
    """The id of an experiment, which is made where there is none.

    Raises:
        ConfigError: where it was deleted. MLflow keeps its name.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifact_location))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # made by another process in between
                raise
            experiment = client.get_experiment_by_name(name)
    if experiment.lifecycle_stage == LifecycleStage.DELETED:
        raise ConfigError(
            f"logger.experiment_name={name}: this experiment of MLflow was deleted; restore it by "
            f"`mlflow experiments restore -x {experiment.experiment_id}` (it reads MLFLOW_TRACKING_URI), or give another name"
        )
    return str(experiment.experiment_id)
