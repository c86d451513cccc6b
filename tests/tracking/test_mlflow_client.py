"""Clients of MLflow's stores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
