"""A stand-in for Slurm: the environment variables of a step's tasks, and a `scontrol` that records its arguments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SRUN = {"SLURM_JOB_ID": "4242", "SLURM_STEP_ID": "1", "SLURM_JOB_NAME": "train"}
"""What every task of a step finds in its environment."""

RECORDS = {
    "told": "JobState=RUNNING Reason=None Restarts=0 PreemptTime=None",
    "cancelled": "JobState=COMPLETING Reason=None Restarts=0 PreemptTime=None",
    "requeued": "JobState=COMPLETING Reason=None Restarts=1",
    "preempted": "JobState=COMPLETING Reason=None Restarts=0 PreemptTime=2026-11-23T04:50:55",
    "out_of_time": "JobState=COMPLETING Reason=TimeLimit Restarts=0 PreemptTime=None",
}
"""What `scontrol show job` says at the signal, by what happens to the job, taken from Slurm 22.05
(`tests/system/slurm/test_records.py` holds a true Slurm against it)."""

SCRIPT = """#!/bin/sh
echo "$@" >> {calls}
[ $(wc -l < {calls}) -gt {killed} ] || kill -TERM $$
if [ "$1" = show ]; then echo "JobId=$3 JobName=train {record}"; exit 0; fi
[ {code} = 0 ] || echo "Job is not permitted to be requeued" >&2
exit {code}
"""


def given(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def fake_scontrol(folder: Path, fate: str = "told", code: int = 0, killed: int = 0) -> dict[str, str]:
    """Write a `scontrol` into `folder/bin` that records its calls in `folder/calls`. Returns the PATH that finds it.

    `killed`: how many calls SIGTERM ends, the first ones.
    """
    script = folder / "bin" / "scontrol"
    script.parent.mkdir()
    script.write_text(SCRIPT.format(calls=folder / "calls", record=RECORDS[fate], code=code, killed=killed))
    script.chmod(0o755)
    return {"PATH": f"{script.parent}{os.pathsep}{os.environ['PATH']}"}


def task(number: int, tasks: int, port: int) -> dict[str, str]:
    """The environment of one of a step's tasks on one node, as srun makes it."""
    job = {"SLURM_JOB_ID": "4242", "SLURM_STEP_ID": "0", "SLURM_JOB_NAME": "train", "SLURM_NODELIST": "127.0.0.1"}
    size = {"SLURM_NTASKS": tasks, "SLURM_NTASKS_PER_NODE": tasks, "SLURM_NNODES": 1}
    place = {"SLURM_PROCID": number, "SLURM_LOCALID": number, "SLURM_NODEID": 0}
    numbers = {name: str(value) for name, value in (size | place).items()}
    return job | numbers | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
