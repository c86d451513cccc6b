"""MLflow stores for tests: SQLite files, and a server that can be stopped and started again."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from mlflow import MlflowClient
from support.ports import free_port
from werkzeug.serving import BaseWSGIServer, make_server

WSGIApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


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


class HttpStore:
    """MLflow's own server over a SQLite store, in a thread of the tests' process, at a port of its own."""

    def __init__(self, app: WSGIApp) -> None:
        self.app = app
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._server: BaseWSGIServer | None = None
        self._answers = threading.Event()

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if self._answers.is_set():
            return self.app(environ, start_response)
        self._answers.wait()
        start_response("503 Service Unavailable", [])  # the client has gone
        return []

    def start(self) -> None:
        self._answers.set()
        self._server = make_server("127.0.0.1", self.port, self._serve, threaded=True)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def hang(self) -> None:
        """Take requests and answer none, until `wake`."""
        self._answers.clear()

    def wake(self) -> None:
        self._answers.set()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@pytest.fixture(scope="session")
def mlflow_app(template: Path, tmp_path_factory: pytest.TempPathFactory) -> WSGIApp:
    """What `mlflow server` serves: one of the session, since it takes its store from the environment, once."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(template, folder / "mlflow.db")
    # what `mlflow server` hands to its workers
    os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{folder}/mlflow.db"
    os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = "mlflow-artifacts:/"
    os.environ["_MLFLOW_SERVER_ARTIFACT_DESTINATION"] = str(folder / "artifacts")
    os.environ["_MLFLOW_SERVER_SERVE_ARTIFACTS"] = "true"
    from mlflow.server import app

    return cast(WSGIApp, app)


@pytest.fixture
def stopped_server(mlflow_app: WSGIApp) -> Iterator[HttpStore]:
    """One that nobody has started yet."""
    store = HttpStore(mlflow_app)
    yield store
    store.stop()


@pytest.fixture
def server(stopped_server: HttpStore) -> HttpStore:
    stopped_server.start()
    return stopped_server
