"""The processes that judge: they hang, die, are closed and forked, and none is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from support.verifier_workers import LIMIT_S, TOWERS, algebra, has_ended, wait_until, worker_pids

from oar_lightning.answers.verifier import Verdict, Verifier, VerifierConfig
from oar_lightning.answers.verifier_worker import PATIENCE


class Bereft(NamedTuple):
    """A verifier whose only worker was killed from outside, that worker, and those of other verifiers."""

    verifier: Verifier
    victim: int
    others: set[int]


@pytest.fixture
def bereft() -> Iterator[Bereft]:
    """All workers have ended afterwards."""
    verifier = Verifier(VerifierConfig(timeout_s=60.0, workers=1))
    others = worker_pids(os.getpid())
    try:
        assert verifier(*algebra(2)) == [Verdict.CORRECT]
        (victim,) = worker_pids(os.getpid()) - others
        os.killpg(victim, signal.SIGKILL)  # and the fork that judges
        assert wait_until(lambda: has_ended(victim), 5)
        yield Bereft(verifier, victim, others)
    finally:
        verifier.close()
    assert worker_pids(os.getpid()) == others


def test_a_worker_killed_from_outside_is_replaced(bereft: Bereft) -> None:
    assert bereft.verifier(*algebra(3)) == [Verdict.CORRECT]
    (successor,) = worker_pids(os.getpid()) - bereft.others
    assert successor != bereft.victim


@pytest.mark.slow
def test_a_fork_that_judges_and_is_killed_from_outside_has_a_successor() -> None:
    verifier = Verifier(VerifierConfig(timeout_s=60.0, workers=1))
    others = worker_pids(os.getpid())
    try:
        assert verifier(*algebra(2)) == [Verdict.CORRECT]
        (worker,) = worker_pids(os.getpid()) - others
        (victim,) = worker_pids(worker)
        os.kill(victim, signal.SIGKILL)
        assert wait_until(lambda: len(worker_pids(worker) - {victim}) == 1, 5)
        assert verifier(*algebra(3)) == [Verdict.CORRECT]
        assert worker_pids(os.getpid()) - others == {worker}
    finally:
        verifier.close()


def test_after_a_timeout_the_same_worker_judges_at_once_and_nothing_of_before() -> None:
    """A fork takes the place of the one that was ended: nothing is loaded anew."""
    verifier = Verifier(VerifierConfig(timeout_s=LIMIT_S, workers=1))
    others = worker_pids(os.getpid())
    try:
        assert verifier(*algebra(2)) == [Verdict.CORRECT]
        (worker,) = worker_pids(os.getpid()) - others
        for number in range(3):
            hanging = worker_pids(worker)
            assert verifier(["5"], [TOWERS[number]]) == [Verdict.TIMEOUT]
            golds, answers = algebra(10 + number)
            assert verifier([*golds, golds[0]], [*answers, "7! - 1"]) == [Verdict.CORRECT, Verdict.INCORRECT]
            assert worker_pids(os.getpid()) - others == {worker}
            assert not hanging & worker_pids(worker)
    finally:
        verifier.close()
    assert not worker_pids(worker)


@pytest.mark.slow
@pytest.mark.parametrize(("stopped_s", "verdict"), [(1.5, Verdict.CORRECT), (None, Verdict.TIMEOUT)])
def test_seconds_in_which_others_have_the_processor_are_not_an_answers(stopped_s: float | None, verdict: Verdict) -> None:
    """A stopped process takes no time of the processor; one that is never continued ends after `PATIENCE`."""
    limit_s = 0.5
    verifier = Verifier(VerifierConfig(timeout_s=limit_s, workers=1))
    others = worker_pids(os.getpid())
    try:
        assert verifier(*algebra(2)) == [Verdict.CORRECT]
        (worker,) = worker_pids(os.getpid()) - others
        (fork,) = worker_pids(worker)
        os.kill(fork, signal.SIGSTOP)
        if stopped_s is not None:
            threading.Timer(stopped_s, os.kill, (fork, signal.SIGCONT)).start()
        start = time.monotonic()
        assert verifier(*algebra(3)) == [verdict]
        assert time.monotonic() - start >= (PATIENCE * limit_s if stopped_s is None else stopped_s)
        assert verifier(*algebra(4)) == [Verdict.CORRECT]
    finally:
        verifier.close()


@pytest.mark.slow
def test_a_worker_that_dies_before_it_is_asked_ends_nothing(bereft: Bereft, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may die between the look whether it is alive and the question."""
    with monkeypatch.context() as patched:
        patched.setattr("oar_lightning.answers.verifier._Worker.alive", lambda worker: True)
        assert bereft.verifier(*algebra(3)) == [Verdict.TIMEOUT]
    assert bereft.verifier(*algebra(3)) == [Verdict.CORRECT]


def test_close_ends_all_workers_and_the_next_verdict_starts_new_ones(patient: Verifier) -> None:
    patient.close()
    others = worker_pids(os.getpid())  # of other tests' verifiers
    assert patient(*algebra(4)) == [Verdict.CORRECT]
    assert worker_pids(os.getpid()) - others
    patient.close()
    assert worker_pids(os.getpid()) == others
    patient.close()
    assert patient(*algebra(5)) == [Verdict.CORRECT]


@pytest.mark.slow
def test_a_hung_worker_does_not_outlive_a_killed_parent() -> None:
    """SIGKILL runs no clean-up: the worker must end by itself though it never reads its closed input.

    The worker is known by its parent: tests that run beside this one have workers of their own."""
    script = f"""
import threading, time
from oar_lightning.answers.verifier import Verifier, VerifierConfig
verifier = Verifier(VerifierConfig(timeout_s={LIMIT_S}, workers=1))
verifier(["5! + 1"], ["121"])
threading.Thread(target=verifier, args=(["1"], ["9^{{9^{{9^{{9}}}}}}"])).start()
time.sleep(0.3)
print("hanging", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "hanging\n"
            hanging = worker_pids(*worker_pids(parent.pid))
        finally:
            parent.kill()
    assert parent.returncode == -signal.SIGKILL
    assert hanging & worker_pids(), "the worker should be hanging now, or this test shows nothing"
    assert wait_until(lambda: not hanging & worker_pids(), LIMIT_S + 8)


@pytest.mark.slow
def test_several_threads_share_the_workers(patient: Verifier) -> None:
    def check(number: int) -> bool:
        golds, answers = algebra(number + 1)
        return patient([*golds, golds[0]], [*answers, f"{119 + number}"]) == [Verdict.CORRECT, Verdict.INCORRECT]

    patient.close()
    others = worker_pids(os.getpid())
    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(check, range(1, 25)))
    assert len(worker_pids(os.getpid()) - others) <= patient.config.workers


def test_a_worker_that_cannot_start_says_what_to_do() -> None:
    verifier = Verifier(VerifierConfig(memory_mb=1, workers=1))
    with pytest.raises(RuntimeError, match=r"verifier_worker.*memory_mb"):
        verifier(*algebra(2))
    assert verifier(["3"], ["3.0"]) == [Verdict.CORRECT]
    verifier.close()


@pytest.mark.slow
def test_a_forked_child_has_workers_of_its_own(verifier: Verifier) -> None:
    """Forked while all workers are busy: the child must neither wait for them nor end them."""
    busy = threading.Thread(target=verifier, args=(["5"] * 2, TOWERS[:2]))
    busy.start()
    time.sleep(0.3)
    child = os.fork()
    if child == 0:  # no assertion here: pytest must not go on twice
        fine = verifier(*algebra(3)) == [Verdict.CORRECT]
        verifier.close()
        os._exit(0 if fine else 1)
    deadline = time.monotonic() + 60
    done = 0
    while not done and time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.05)
    if not done:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    busy.join()
    assert done, "the child hangs"
    assert os.waitstatus_to_exitcode(status) == 0
    assert verifier(*algebra(2)) == [Verdict.CORRECT]


@pytest.mark.slow
def test_close_during_a_verdict_adds_no_worker() -> None:
    verifier = Verifier(VerifierConfig(timeout_s=LIMIT_S, workers=1))
    before = worker_pids(os.getpid())
    busy = threading.Thread(target=verifier, args=(["5"], TOWERS[:1]))
    busy.start()
    time.sleep(0.3)
    verifier.close()
    busy.join()
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda n: verifier(*algebra(n)) == [Verdict.CORRECT], range(4)))
    assert len(worker_pids(os.getpid()) - before) <= 1
    verifier.close()
