"""Clients of MLflow's stores that answer in seconds, one way or the other."""

from __future__ import annotations

import contextlib
import os

from mlflow import MlflowClient

from oar_lightning.common.locks import FileLock
from oar_lightning.common.paths import local_database

# MLflow's own seven retries would hold a request for minutes; who asks here tries again by itself, or reports
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")


def connect(tracking_uri: str) -> MlflowClient:
    """A client whose store exists. Processes that make the same new SQLite database at once would disturb each other.

    Raises:
        MlflowException: where the store cannot be read or the server does not answer.
    """
    with contextlib.ExitStack() as stack:
        if (database := local_database(tracking_uri)) is not None:
            stack.enter_context(FileLock(database.with_name(f"{database.name}.lock")))
        client = MlflowClient(tracking_uri)  # makes the tables
        client.search_experiments(max_results=1)  # asks a server whether it is there
    return client
