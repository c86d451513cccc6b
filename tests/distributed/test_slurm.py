"""Slurm's queue, with a stand-in for `scontrol`; `tests/system/slurm` has a true one."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_slurm import RECORDS, SRUN, fake_scontrol, given

from oar_lightning.distributed import slurm
from oar_lightning.distributed.slurm import IdleSignals, fate, requeue

pytestmark = pytest.mark.usefixtures("by_hand")


@pytest.mark.parametrize("expected", RECORDS)
def test_a_record_tells_why_a_job_ends(expected: str) -> None:
    assert fate(RECORDS[expected], restarts=0) == expected


@pytest.mark.parametrize("preempted", ["None", "2026-11-23T19:00:02"])
def test_a_job_to_which_a_signal_is_on_its_way_goes_on(preempted: str) -> None:
    assert fate(f"JobState=SIGNALING Reason=None Restarts=0 PreemptTime={preempted}", restarts=0) == "told"


def test_only_a_further_start_counts() -> None:
    assert fate(RECORDS["requeued"], restarts=1) == "cancelled"
    assert fate("JobState=RUNNING Reason=None Restarts=3 PreemptTime=None", restarts=3) == "told"


@pytest.mark.parametrize(
    ("fate", "code", "calls", "says", "errors"),
    [
        ("told", 0, ["show job 4242", "requeue 4242"], "in the queue again", 0),
        ("out_of_time", 0, ["show job 4242", "requeue 4242"], "in the queue again", 0),
        ("preempted", 0, ["show job 4242", "requeue 4242"], "in the queue again", 0),
        ("requeued", 1, ["show job 4242"], "Slurm has put the job 4242 into the queue again", 0),
        ("cancelled", 0, ["show job 4242"], "was cancelled and is not put", 0),
        ("told", 1, ["show job 4242", "requeue 4242"], "requeue 4242 failed (Job is not permitted to be requeued)", 1),
    ],
)
def test_a_job_is_put_into_the_queue_again(
    fate: str,
    code: int,
    calls: list[str],
    says: str,
    errors: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    given(monkeypatch, SRUN | fake_scontrol(tmp_path, fate, code))
    with caplog.at_level(logging.WARNING):
        requeue()
    assert (tmp_path / "calls").read_text().splitlines() == calls
    assert says in caplog.text
    assert sum(record.levelno >= logging.ERROR for record in caplog.records) == errors


def test_a_job_that_had_no_time_to_train_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given(monkeypatch, SRUN | fake_scontrol(tmp_path, "out_of_time"))
    requeue(trained=False)
    assert (tmp_path / "calls").read_text().splitlines() == ["show job 4242"]
    assert "submit it again with a longer --time" in caplog.text


@pytest.mark.parametrize(
    ("fate", "killed", "calls", "says"),
    [
        ("cancelled", 1, ["show job 4242"] * 2, "was cancelled and is not put"),
        ("requeued", 4, ["show job 4242"] * 5, "Slurm has put the job 4242 into the queue again"),
        ("told", 2, ["show job 4242"] * 3 + ["requeue 4242"], "in the queue again"),
        ("told", 9, ["show job 4242"] * 5, "requeue 4242 failed (each was ended by a signal)"),
    ],
)
def test_a_signal_that_ends_the_question_is_no_answer(
    fate: str,
    killed: int,
    calls: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Slurm signals all processes of a job, the one that asks it included."""
    given(monkeypatch, SRUN | fake_scontrol(tmp_path, fate, killed=killed))
    with caplog.at_level(logging.WARNING):
        requeue()
    assert (tmp_path / "calls").read_text().splitlines() == calls
    assert says in caplog.text


def test_where_there_is_no_scontrol_the_job_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given(monkeypatch, SRUN | {"PATH": str(tmp_path)})
    requeue()
    assert "scontrol requeue 4242 failed" in caplog.text
    assert "submit the job again with ckpt_path" in caplog.text


def in_a_child(work: Callable[[], None]) -> int:
    """The exit code of a forked process that does this and then waits."""
    if (child := os.fork()) == 0:
        try:
            work()
            signal.alarm(20)  # a test that fails ends too
            while True:
                signal.pause()
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def answering(training: bool, monkeypatch: pytest.MonkeyPatch, failed: bool = False) -> Callable[[], None]:
    """Hears SIGUSR1 while it loads, then SIGTERM: while it loads, trains, or ends since training has failed."""
    monkeypatch.setattr(slurm, "leave", lambda trained: os._exit(3))

    def work() -> None:
        signals = IdleSignals()
        signals.answer()
        os.kill(os.getpid(), signal.SIGUSR1)
        while not signals.warned:
            time.sleep(0.01)
        if training:
            assert signals.begin_training()
        if failed:
            signals.end_training(failed=True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
        os._exit(4)

    return work


def test_a_signal_while_nothing_is_trained_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_a_child(answering(False, monkeypatch)) == 3


def test_while_training_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_a_child(answering(True, monkeypatch)) == 4


def test_a_run_that_has_failed_is_left_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_a_child(answering(True, monkeypatch, failed=True)) == 4


def test_a_forked_process_is_ended_by_its_signals_and_its_parent_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "leave", lambda trained: os._exit(3))

    def work() -> None:
        IdleSignals().answer()
        code = in_a_child(lambda: os.kill(os.getpid(), signal.SIGTERM))
        os._exit(5 if code == -signal.SIGTERM else 6)

    assert in_a_child(work) == 5


AT_THE_END = """
import os, signal
from oar_lightning.distributed.slurm import idle_signals
idle_signals.answer()
class Late:
    def __del__(self, kill=os.kill, process=os.getpid()):
        kill(process, signal.SIGUSR1)
        kill(process, signal.SIGTERM)
        os.write(1, b"late")
late = Late()
"""


def test_a_process_that_is_done_is_not_ended_while_python_clears_up() -> None:
    """Python gives signals their default back before it drops modules, which may take seconds on a busy machine."""
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "late")
