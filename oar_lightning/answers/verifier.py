"""Judges answers by their form where that decides, else by `math-verify` in worker processes that can be killed.

The workers are own code. `math-verify` limits its time by an alarm, which only the main thread can set, and which C code
ignores. The standard library's pool of processes cannot end a single task: it loses all its workers or none.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import IO

from oar_lightning.answers.form import compare, near, numbers
from oar_lightning.answers.spelling import canonical, in_other_angles, rounded
from oar_lightning.answers.structure import Pair
from oar_lightning.answers.verifier_worker import PATIENCE, READY, RENEW
from oar_lightning.common.ranges import NonNegativeInt, Positive, PositiveFloat, PositiveInt, checked


class Verdict(StrEnum):
    """The result of comparing an answer with the gold answer."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    UNPARSEABLE = "unparseable"
    TIMEOUT = "timeout"


@checked("reward verifier")
@dataclass(frozen=True)
class VerifierConfig:
    """Limits of one verdict.

    Args:
        timeout_s: seconds of the processor after which a comparison is ended and the answer judged `timeout`; so it is after
            `PATIENCE` times as many on the clock. Other processes of a busy machine take no answer's time.
        memory_mb: address space of a worker.
        workers: processes; they start with the first answer that needs computer algebra.
        max_characters: longer answers are `unparseable` at once.
        cache: number of verdicts after which the cache is emptied; 0: no cache.
    """

    timeout_s: PositiveFloat = 2.0
    memory_mb: PositiveInt = 1024
    workers: PositiveInt = 2
    max_characters: PositiveInt = 1000
    cache: NonNegativeInt = 200_000


class Verifier:
    """Judges answers in their order. Thread-safe; verdicts are cached by text.

    The verifier owns its worker processes: `close` and the exit of this process end them all.
    """

    def __init__(self, config: VerifierConfig = VerifierConfig()) -> None:
        self.config = config
        self._cache: dict[Pair, Verdict] = {}
        self._forget_workers()
        atexit.register(self.close)

    def _forget_workers(self) -> None:
        """Start with an empty pool of workers; a verdict in progress returns its worker to the old pool."""
        self._process = os.getpid()
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        for _ in range(self.config.workers):
            self._idle.put(None)  # a free place: its process starts when it is first used
        self._workers: set[_Worker] = set()
        self._lock = threading.Lock()

    def __call__(self, golds: Sequence[str], answers: Sequence[str | None]) -> list[Verdict]:
        """One verdict for each (gold, answer); an absent answer is incorrect."""
        pairs = [None if answer is None else (gold, answer) for gold, answer in zip(golds, answers, strict=True)]
        verdicts: dict[Pair, Verdict] = {}
        algebra: dict[Pair, Pair] = {}
        for pair in dict.fromkeys(p for p in pairs if p is not None):
            known = self._cache.get(pair) or self.by_form(*pair)
            if isinstance(known, Verdict):
                verdicts[pair] = known
            else:
                algebra[pair] = known
        if algebra:
            if self._process != os.getpid():  # forked: the workers are the parent's
                self._forget_workers()
            rewritten = list(dict.fromkeys(algebra.values()))
            with ThreadPoolExecutor(min(self.config.workers, len(rewritten))) as threads:
                judged = dict(zip(rewritten, threads.map(self._by_algebra, rewritten), strict=True))
            verdicts.update({pair: judged[form] for pair, form in algebra.items()})
        if self.config.cache:
            if len(self._cache) > self.config.cache:
                self._cache.clear()
            # a busy machine may have caused a timeout: such a pair is judged again
            self._cache.update({pair: verdict for pair, verdict in verdicts.items() if verdict is not Verdict.TIMEOUT})
        return [Verdict.INCORRECT if pair is None else verdicts[pair] for pair in pairs]

    def within(self, gold: str, answer: str, tolerance: float) -> bool:
        """Whether both answers are single numbers that differ by at most `tolerance`."""
        if max(len(gold), len(answer)) > self.config.max_characters:
            return False
        return near(canonical(gold), canonical(answer), tolerance)

    def by_form(self, gold: str, answer: str) -> Verdict | Pair:
        """The verdict where the form of the answers decides it, else the pair for computer algebra."""
        if max(len(gold), len(answer)) > self.config.max_characters:
            return Verdict.UNPARSEABLE
        expected, actual = canonical(gold), canonical(answer)
        if not expected or not actual:
            return Verdict.UNPARSEABLE
        if in_other_angles(gold, answer):
            return Verdict.INCORRECT
        if "," in gold and "," in answer and canonical(gold, False) == canonical(answer, False):
            return Verdict.CORRECT  # `70,110`, number or list, is `70, 110`
        outcome = compare(expected, actual)
        if outcome is not True and "." in expected and (number := rounded(answer)) and numbers(expected, number):
            half_a_unit = 0.5 * 10.0 ** -len(number.partition(".")[2])
            if near(actual, number, half_a_unit):  # `0.5 \approx 0.67` would be two guesses
                return Verdict.CORRECT  # `2/3 \approx 0.67`, where the gold answer is the rounded one
        if isinstance(outcome, bool):
            return Verdict.CORRECT if outcome else Verdict.INCORRECT
        return outcome

    def _by_algebra(self, pair: Pair) -> Verdict:
        idle = self._idle
        worker = idle.get()
        try:
            if worker is not None and not worker.alive():  # killed from outside
                self._stop(worker)
                worker = None
            if worker is None:
                worker = self._start()
            answer = worker.ask(pair, self.config.timeout_s)
            if answer is not None:
                return Verdict(answer)
            if not worker.renew():
                self._stop(worker)
                worker = None
            return Verdict.TIMEOUT
        finally:
            if worker is not None and idle is not self._idle:  # closed while it started
                self._stop(worker)
                worker = None
            idle.put(worker)

    def _start(self) -> _Worker:
        worker = _Worker(self.config.memory_mb * 2**20, self.config.timeout_s)
        with self._lock:
            self._workers.add(worker)
        return worker

    def _stop(self, worker: _Worker) -> None:
        worker.kill()
        with self._lock:
            self._workers.discard(worker)

    def close(self) -> None:
        """End all workers; the next verdict starts new ones."""
        if self._process == os.getpid():
            for worker in list(self._workers):
                self._stop(worker)
        self._forget_workers()


class _Worker:
    """A child process that has loaded computer algebra, and the fork of it that judges: a new one is there at once."""

    START_TIMEOUT_S = 600.0
    """On the clock: on a busy machine, or from a slow file system, what is seconds of work may take minutes."""

    def __init__(self, memory_bytes: int, timeout_s: Positive) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "oar_lightning.answers.verifier_worker", str(memory_bytes), str(timeout_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            start_new_session=True,  # Ctrl-C is for the trainer, which then closes its workers
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pipe(self._process.stdout), selectors.EVENT_READ)
        self._read = b""
        self._asked = 0
        if not self._ready():
            how = f"has not started within {self.START_TIMEOUT_S:.0f} s"
            with contextlib.suppress(subprocess.TimeoutExpired):
                how = f"ended with exit code {self._process.wait(1)}"
            self.kill()
            raise RuntimeError(
                f"reward: a math-verify worker {how}; check `python -m oar_lightning.answers.verifier_worker 1073741824 2`, "
                "and raise the verifier's memory_mb if it dies of memory"
            )

    def ask(self, pair: Pair, timeout_s: Positive) -> str | None:
        """The verdict; None where the fork that judges exceeded its time or died."""
        self._forget_lines()
        self._asked += 1
        try:
            stdin = self._pipe(self._process.stdin)
            stdin.write(json.dumps((self._asked, *pair)).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return None
        deadline = time.monotonic() + PATIENCE * timeout_s
        while (line := self._line(deadline)) is not None and line != READY:  # ready: another fork, this one died
            number, _, verdict = line.partition(" ")
            if number == str(self._asked):  # else of a pair that was given up
                return verdict
        return None

    def renew(self) -> bool:
        """End the fork that judges, for another one; False where the process that is to make it is gone."""
        self._forget_lines()
        self._process.send_signal(RENEW)
        return self.alive() and self._ready()

    def _ready(self) -> bool:
        deadline = time.monotonic() + self.START_TIMEOUT_S
        while (line := self._line(deadline)) is not None:
            if line == READY:
                return True
        return False

    def _forget_lines(self) -> None:
        """Of forks that have died."""
        while self._line(time.monotonic()) is not None:
            pass

    def _line(self, deadline: float) -> str | None:
        stdout = self._pipe(self._process.stdout)
        while b"\n" not in self._read:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                return None
            piece = os.read(stdout.fileno(), 4096)
            if not piece:
                return None
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        if self.alive():  # until it is waited for, its number is no other group's
            os.killpg(self._process.pid, signal.SIGKILL)  # it and its fork, which otherwise its input's end or an alarm ends
        self._process.wait()
        self._selector.close()
        with contextlib.suppress(OSError):  # closing writes what a worker that has died did not take
            self._pipe(self._process.stdin).close()
        self._pipe(self._process.stdout).close()

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None, "Popen was asked for a pipe"
        return pipe
