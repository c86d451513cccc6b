"""Jobs in processes of their own: crashes, signals, locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.locks import FileLock
from oar_lightning.sweep import process
from oar_lightning.sweep.process import recording_failure, run_job, run_process, run_recorded
from oar_lightning.sweep.trial import (
    FOLDER_VARIABLE,
    Pruned,
    Pruning,
    Result,
    SweepRefused,
    Ticket,
    read_result,
    read_ticket,
    write_result,
    write_ticket,
)

TICKET = Ticket("mine", 3, 1, {"gate.tau": 0.4}, "/somewhere/optuna.db", "abc", Pruning(enabled=True, startup_trials=2))


def python(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let `run_job` run this instead of the package, with the job's folder as `folder`."""
    prologue = f"import os, pathlib, signal, sys, time; folder = pathlib.Path(os.environ['{FOLDER_VARIABLE}'])\n"
    real = run_process
    monkeypatch.setattr(process, "run_process", lambda command, *rest: real([sys.executable, "-c", prologue + code], *rest))


def test_files_keep_what_they_are_given(tmp_path: Path) -> None:
    write_ticket(tmp_path, TICKET)
    assert read_ticket(tmp_path) == TICKET
    assert read_result(tmp_path) is None
    write_result(tmp_path, Result("complete", {"objective": 0.25}))
    assert read_result(tmp_path) == Result("complete", {"objective": 0.25})
    assert TICKET.tags()["swept"] == '{"gate.tau": 0.4}'


def test_a_job_returns_its_objective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python(monkeypatch, '(folder / \'result.json\').write_text(\'{"state": "complete", "metrics": {"objective": 0.5}}\')')
    assert run_job([], tmp_path) == 0.5


def test_a_job_is_no_task_of_the_slurm_step_that_starts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks are its own, and no job is queued again for it."""
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_PROCID", "0")
    python(monkeypatch, "sys.exit(7 if [k for k in os.environ if k.startswith('SLURM_')] else 0)")
    assert run_job([], tmp_path) is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the process was ended by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the process was ended by SIGKILL, perhaps out of memory"),
        ("sys.exit(7)", "the process ended with exit code 7"),
    ],
)
def test_a_crash_is_a_failure_with_its_reason(code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python(monkeypatch, code)
    with pytest.raises(RuntimeError, match=reason):
        run_job([], tmp_path)
    assert read_result(tmp_path) == Result("failed", reason=reason)


@pytest.mark.parametrize("code", ["sys.exit(143)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_a_trial_that_was_told_to_stop_has_no_result(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python(monkeypatch, code)
    with pytest.raises(SystemExit) as end:
        run_job([], tmp_path)
    assert end.value.code == 143
    assert read_result(tmp_path) is None


def test_a_trial_with_a_result_is_not_run_again_but_a_plain_job_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python(monkeypatch, "(folder / 'ran').touch()")
    write_result(tmp_path, Result("complete", {"objective": 0.5}))
    write_ticket(tmp_path, TICKET)
    assert run_job([], tmp_path) == 0.5
    assert not (tmp_path / "ran").exists()
    (tmp_path / "ticket.json").unlink()
    assert run_job([], tmp_path) is None
    assert (tmp_path / "ran").exists()


SLEEPER = """
import subprocess, sys, time
from pathlib import Path
from oar_lightning.sweep import process
code = "import signal, sys, time; signal.signal(2, lambda *_: sys.exit(130)); print('up', flush=True); time.sleep(60)"
real = process.run_process
process.run_process = lambda command, *rest: real([sys.executable, '-c', code], *rest)
process.run_job([], Path(sys.argv[1]))
"""


def begun(code: str, folder: Path) -> subprocess.Popen[bytes]:
    """The process of a sweep whose job is at work."""
    sweep = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert sweep.stdout is not None
    assert sweep.stdout.readline() == b"up\n"
    return sweep


def test_ctrl_c_is_passed_on_and_the_lock_is_free_then(tmp_path: Path) -> None:
    sweep = begun(SLEEPER, tmp_path)
    assert not FileLock(tmp_path / "run.lock").acquire(wait=False)
    sweep.send_signal(signal.SIGINT)
    sweep.communicate(timeout=20)
    assert sweep.returncode in (130, -signal.SIGINT)
    assert FileLock(tmp_path / "run.lock").acquire(wait=False)


STUBBORN = """
import subprocess, sys, time
from pathlib import Path
from oar_lightning.sweep import process
code = "import signal, time; signal.signal(2, lambda *_: print('told', flush=True)); print('up', flush=True); time.sleep(60)"
real = process.run_process
process.run_process = lambda command, *rest: real([sys.executable, '-c', code], *rest)
process.run_job([], Path(sys.argv[1]))
"""


def test_a_second_ctrl_c_ends_the_job_at_once_as_was_said_at_the_first(tmp_path: Path) -> None:
    sweep = begun(STUBBORN, tmp_path)
    assert sweep.stdout is not None
    assert sweep.stderr is not None
    sweep.send_signal(signal.SIGINT)
    assert sweep.stdout.readline() == b"told\n"
    assert b"waiting for the job to finish its optimizer step and save its checkpoint; a second" in sweep.stderr.readline()
    assert sweep.poll() is None
    assert not FileLock(tmp_path / "run.lock").acquire(wait=False)
    sweep.send_signal(signal.SIGINT)
    sweep.communicate(timeout=20)
    assert FileLock(tmp_path / "run.lock").acquire(wait=False)
    assert read_result(tmp_path) is None, "it goes on from its last checkpoint"


def test_no_step_is_too_long_to_be_waited_for() -> None:
    """A stand-in for a process that takes longer than any limit."""
    calls: list[object] = []

    class Long:
        pid = 0

        def poll(self) -> None: ...

        def send_signal(self, number: int) -> None:
            calls.append(number)

        def wait(self, timeout: float | None = None) -> int:
            calls.append(timeout)
            if timeout is not None:
                raise subprocess.TimeoutExpired("job", timeout)
            return 130

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "killpg", lambda *what: calls.append(what))
        process._stop(Long())  # type: ignore[arg-type]
    assert calls == [signal.SIGINT, None]


def test_a_job_holds_the_lock_beyond_the_death_of_its_sweep(tmp_path: Path) -> None:
    sweep = subprocess.Popen([sys.executable, "-c", SLEEPER, str(tmp_path)], stdout=subprocess.PIPE)
    assert sweep.stdout is not None
    assert sweep.stdout.readline() == b"up\n"
    (job,) = [int(p) for p in Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children").read_text().split()]
    sweep.kill()
    sweep.wait()
    assert not FileLock(tmp_path / "run.lock").acquire(wait=False)
    os.kill(job, signal.SIGKILL)
    FileLock(tmp_path / "run.lock").acquire()


WATCHED = """
import signal, sys, time
from oar_lightning.sweep.process import stop_with_parent
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
stop_with_parent()
print('up', flush=True)
time.sleep(60)
"""


def test_a_job_stops_in_an_orderly_way_when_its_sweep_is_gone(tmp_path: Path) -> None:
    job = subprocess.Popen(
        [sys.executable, "-c", WATCHED],
        env=os.environ | {FOLDER_VARIABLE: str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert job.stdout is not None
    assert job.stdin is not None
    assert job.stdout.readline() == b"up\n"
    time.sleep(0.2)
    assert job.poll() is None
    job.stdin.close()  # what the kernel does when the sweep is killed
    assert job.wait(20) == 143


SAVING = """
import signal, sys, threading, time
from oar_lightning.sweep.process import stop_with_parent
told, saves = threading.Event(), threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())
time.sleep = lambda seconds: None  # whoever would give it some seconds
stop_with_parent()
print('up', flush=True)
while not told.wait(0.05):
    pass
saves.wait(0.5)
print('saved', flush=True)
sys.exit(143)
"""


def test_a_job_whose_sweep_is_gone_has_the_time_that_its_step_takes(tmp_path: Path) -> None:
    environment = os.environ | {FOLDER_VARIABLE: str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    job = subprocess.Popen([sys.executable, "-c", SAVING], env=environment, **pipes)
    assert job.stdout is not None
    assert job.stdin is not None
    assert job.stdout.readline() == b"up\n"
    job.stdin.close()
    job.stdin = None
    shown, told = job.communicate(timeout=20)
    assert (shown, job.returncode) == (b"saved\n", 143)
    assert b"has ended; stopping after this optimizer step and its checkpoint" in told


def test_reporting_writes_how_a_job_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert run_recorded(lambda: 0.25) == 0.25
    assert read_result(tmp_path) == Result("complete", {"objective": 0.25})
    with pytest.raises(ValueError, match="no such"), recording_failure():
        raise ValueError("no such key\nand more")
    assert read_result(tmp_path) == Result("failed", reason="ValueError: no such key")
    with pytest.raises(ConfigError), recording_failure(begun=False):
        raise ConfigError("policy.name=./nothing\nis no folder")
    assert read_result(tmp_path) == Result("refused", reason="policy.name=./nothing\nis no folder")
    with pytest.raises(ConfigError), recording_failure(begun=False):
        raise SweepRefused("of all")
    assert read_result(tmp_path) == Result("refused", reason="of all", of_all=True)
    with pytest.raises(ConfigError), recording_failure(begun=False):
        raise ConfigError("http://me:secret@host is away") from MlflowException("of a server")
    assert read_result(tmp_path) == Result("refused", reason="http://host is away", of_all=True)
    with pytest.raises(ConfigError):
        run_recorded(lambda: raising(ConfigError("of a run that had begun")))
    assert read_result(tmp_path) == Result("failed", reason="ConfigError: of a run that had begun")
    with pytest.raises(ArithmeticError):
        run_recorded(lambda: raising(ArithmeticError("broken")))
    assert read_result(tmp_path) == Result("failed", reason="ArithmeticError: broken")
    assert run_recorded(lambda: raising(Pruned("worse than the median"))) is None
    assert read_result(tmp_path) == Result("pruned", reason="worse than the median")


def test_a_result_that_the_work_has_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    own = Result("complete", {"objective": 0.5, "time/total_s": 3.0})

    def work() -> float:
        write_result(tmp_path, own)
        return 0.5

    assert run_recorded(work) == 0.5
    assert read_result(tmp_path) == own


def test_other_ranks_and_ordinary_runs_report_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="x"):
        run_recorded(lambda: raising(ValueError("x")))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ValueError, match="x"):
        run_recorded(lambda: raising(ValueError("x")))
    with pytest.raises(ValueError, match="x"), recording_failure():
        raise ValueError("x")
    assert not list(tmp_path.iterdir())


def raising(error: Exception) -> float:
    raise error
