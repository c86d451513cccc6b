"""Clients of MLflow's stores."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from oar_lightning.common.config_check import ConfigError
from oar_lightning.tracking.mlflow_client import connect, experiment_id

CONNECT = """
import sys
from oar_lightning.tracking.mlflow_client import connect
print("ready", flush=True)
sys.stdin.readline()
connect(sys.argv[1])
"""


@pytest.mark.slow
def test_processes_can_make_a_new_database_at_once(tmp_path: Path) -> None:
    """Without a lock all but one of them end with `duplicate column name` or the like."""
    command = [sys.executable, "-c", CONNECT, f"sqlite:///{tmp_path}/new/mlflow.db"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """To root no folder is closed."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(own)


def test_a_store_that_can_only_be_read_is_read(store: str) -> None:
    connect(store)  # also loads what MLflow loads late, which another user might not be able to
    with tempfile.TemporaryDirectory() as name:  # not the test's own folder, which is closed to others
        database = Path(name) / "mlflow.db"
        shutil.copy(store.removeprefix("sqlite:///"), database)
        database.chmod(0o444)
        database.parent.chmod(0o555)
        with without_rights():
            with pytest.raises(PermissionError):
                (database.parent / "mlflow.db.lock").touch()
            assert connect(f"sqlite:///{database}").get_experiment_by_name("Default") is not None
            with pytest.raises(PermissionError):
                connect(f"sqlite:///{database.parent}/other.db")
        database.parent.chmod(0o755)


def test_an_experiment_is_made_once_and_refused_where_it_was_deleted(tmp_path: Path) -> None:
    client = connect(f"sqlite:///{tmp_path}/mlflow.db")
    made = experiment_id(client, "mine", str(tmp_path / "artifacts"))
    assert experiment_id(client, "mine", None) == made
    client.delete_experiment(made)
    with pytest.raises(ConfigError, match=rf"logger\.experiment_name=mine: .*restore -x {made}.*another name"):
        experiment_id(client, "mine", None)
    client.restore_experiment(made)
    assert experiment_id(client, "mine", None) == made
