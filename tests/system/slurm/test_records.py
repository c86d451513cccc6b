"""What the true `scontrol show job` says of a job that is told to end. The unit tests' stand-in says the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.fake_slurm import RECORDS
from support.slurm import Job, Slurm, needs_slurm

from oar_lightning.distributed.slurm import fate

pytestmark = [pytest.mark.slow, needs_slurm]

TOLD = """
import os, pathlib, signal, subprocess, sys, time
def show(number, frame):
    shown = ""
    while not shown:  # Slurm's signals go to all processes of a job, and may end this one, too
        shown = subprocess.run(["scontrol", "show", "job", os.environ["SLURM_JOB_ID"]], capture_output=True, text=True).stdout
    pathlib.Path("written").write_text(shown)
    os.replace("written", "record")
    os._exit(0)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, show)
print("ready", flush=True)
time.sleep(0 if "SLURM_RESTART_COUNT" in os.environ else 300)
"""

FIELDS = ("JobState", "Reason", "Restarts")


def cancel(slurm: Slurm, job: Job, folder: Path) -> None:
    slurm.run("scancel", str(job.number))


def warn(slurm: Slurm, job: Job, folder: Path) -> None:
    slurm.run("scancel", "--signal=USR1", str(job.number))


def preempt(slurm: Slurm, job: Job, folder: Path) -> None:
    assert slurm.preempt(folder).end() == "COMPLETED"


def wait(slurm: Slurm, job: Job, folder: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("expected", "end", "options"),
    [
        ("cancelled", cancel, []),
        ("told", warn, []),
        ("told", preempt, ["--partition=grace"]),
        ("requeued", preempt, ["--partition=low"]),
        ("preempted", preempt, ["--partition=cancel"]),
        ("out_of_time", wait, ["--time=1"]),
    ],
    ids=["scancel", "USR1", "grace", "no grace", "preempted for good", "time limit"],
)
def test_a_record_tells_why_a_job_ends(expected: str, end, options: list[str], slurm: Slurm, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    script = tmp_path / "told.py"
    script.write_text(TOLD)
    job = slurm.submit(tmp_path, f"srun {sys.executable} {script}", *options)
    job.wait_for("ready")
    end(slurm, job, tmp_path)
    job.wait((tmp_path / "record").exists, "a signal")
    record = (tmp_path / "record").read_text()
    assert fate(record, restarts=0) == expected, record
    standing_in = dict(pair.split("=") for pair in RECORDS[expected].split())
    shown = record.replace("JobState=SIGNALING", "JobState=RUNNING")  # for as long as the signal is on its way
    assert all(f"{field}={standing_in[field]}" in shown for field in FIELDS), record
    assert ("PreemptTime=2" in record) == ("PreemptTime=2" in RECORDS[expected]) or expected == "told"
