"""A true training run whose true tracking server is killed in the middle, and then the run too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from support.ports import free_port

from oar_lightning.tracking.journal import read_records

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "_MLFLOW_"))}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # nine processes less


def wait_for(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture
def serving(tmp_path: Path, store: str) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """The server's address, and how to start and to kill it."""
    port, servers = free_port(), []

    def up() -> bool:
        try:
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def start() -> None:
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--backend-store-uri",
            store,
            "--port",
            str(port),
            "--workers",
            "1",
        ]
        command += ["--artifacts-destination", str(tmp_path / "artifacts"), "--host", "127.0.0.1"]
        with (tmp_path / "server.log").open("a") as log:
            servers.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=ENVIRONMENT))
        wait_for(up)

    def kill() -> None:
        server = servers.pop()
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()

    yield f"http://127.0.0.1:{port}", start, kill
    while servers:
        kill()


def steps_written(folder: Path) -> list[dict[str, Any]]:
    """The records of steps in the only run's journal."""
    journals = folder.glob("outputs/smoke/seed0/*/tracking/journal.jsonl")
    return [r for file in journals for r, _ in read_records(file) if r["kind"] == "metrics" and "reward" in r["values"]]


@pytest.mark.slow
def test_server_and_run_are_killed_and_nothing_is_lost(tmp_path: Path, serving) -> None:
    address, start, kill = serving
    start()
    command = [sys.executable, "-m", "oar_lightning", "+experiment=smoke", "trainer.max_steps=400", "num_threads=1"]
    output = tmp_path / "run.log"
    with output.open("w") as log:
        run = subprocess.Popen(
            [*command, f"logger.tracking_uri={address}"], cwd=tmp_path, env=ENVIRONMENT, stdout=log, stderr=log
        )
    try:
        wait_for(lambda: len(steps_written(tmp_path)) >= 20)
        kill()
        wait_for(lambda: len(steps_written(tmp_path)) >= 60)
        assert "MLflow" in output.read_text(), "it is said that the server is away"
    finally:
        run.kill()
        run.wait()
    written = steps_written(tmp_path)

    def sync() -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command[:3], "task=sync"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)

    assert sync().returncode == 1, "the server is still away"
    start()
    for _ in range(2):
        done = sync()
        assert done.returncode == 0, done.stdout + done.stderr
        client = MlflowClient(address)
        (found,) = client.search_runs([client.get_experiment_by_name("oar_lightning").experiment_id])
        history = client.get_metric_history(found.info.run_id, "reward")
        assert [(m.step, m.timestamp, m.value) for m in history] == [
            (r["step"], r["time"], r["values"]["reward"]) for r in written
        ]
        assert found.info.status == "RUNNING", "nobody has said how it ended"
