"""MLflow stores for tests: SQLite files, and a server that can be stopped and started again."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from werkzeug.serving import BaseWSGIServer, make_server


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an empty SQLite store: copied, since MLflow takes seconds to make one."""
    path = tmp_path_factory.mktemp("template") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def empty_store(template: Path) -> Callable[[Path], str]:
    """Puts an empty SQLite store into a folder, and returns its address."""

    def put(folder: Path) -> str:
        shutil.copy(template, folder / "mlflow.db")
        return f"sqlite:///{folder}/mlflow.db"

    return put


@pytest.fixture
def store(empty_store: Callable[[Path], str], tmp_path: Path) -> str:
    """The address of an empty SQLite store in the test's folder."""
    return empty_store(tmp_path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class HttpStore:
    """MLflow's own server over a SQLite store, in a thread of the tests' process."""

    def __init__(self) -> None:
        from mlflow.server import app

        self.app = app
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._server: BaseWSGIServer | None = None

    def start(self) -> None:
        self._server = make_server("127.0.0.1", self.port, self.app, threaded=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@pytest.fixture(scope="session")
def http_app_store(template: Path, tmp_path_factory: pytest.TempPathFactory) -> HttpStore:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(template, folder / "mlflow.db")
    # what `mlflow server` hands to its workers
    os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{folder}/mlflow.db"
    os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = "mlflow-artifacts:/"
    os.environ["_MLFLOW_SERVER_ARTIFACT_DESTINATION"] = str(folder / "artifacts")
    os.environ["_MLFLOW_SERVER_SERVE_ARTIFACTS"] = "true"
    return HttpStore()


@pytest.fixture
def server(http_app_store: HttpStore):
    http_app_store.start()
    yield http_app_store
    http_app_store.stop()
