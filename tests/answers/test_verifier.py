"""Verdicts: the exact path, math-verify in workers, hostile answers, processes that die or must end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oar_lightning.answers.verifier import Verdict, Verifier, VerifierConfig

LIMIT_S = 1.0


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    verifier = Verifier(VerifierConfig(timeout_s=LIMIT_S, workers=2))
    yield verifier
    verifier.close()


def algebra(number: int) -> tuple[list[str], list[str]]:
    """A gold and a correct answer that only computer algebra can compare."""

    return [f"5! + {number}"], [f"{120 + number}"]


def worker_pids(*parents: int) -> set[int]:
    """The living worker processes, by the process table; with `parents`, their children only."""
    pids = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_worker = b"oar_lightning.answers.verifier_worker" in (folder / "cmdline").read_bytes().split(b"\0")
            state, ppid = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:  # ended meanwhile
            continue
        if is_worker and state != "Z" and (not parents or int(ppid) in parents):
            pids.add(int(folder.name))
    return pids


def has_ended(pid: int) -> bool:
    """Whether its parent can be told so; a process that is ending has lost its command line before that."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_plain_numbers_need_no_worker() -> None:
    before = worker_pids(os.getpid())
    verifier = Verifier()
    pairs = [
        ("18", "18.0"),
        ("1000", "1,000"),
        ("18", "$18"),
        ("7", "007"),
        ("50\\%", "50 %"),
        ("-3", "3"),
        ("0.1", "0.10000001"),
    ]
    verdicts = verifier(*map(list, zip(*pairs, strict=True)))
    assert verdicts == [Verdict.CORRECT] * 5 + [Verdict.INCORRECT] * 2
    assert verifier(["1"], [None]) == [Verdict.INCORRECT]
    assert verifier(["1"], [""]) == [Verdict.UNPARSEABLE]
    assert verifier([], []) == []
    assert worker_pids(os.getpid()) == before


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("0.5", "1/2", True),
        ("\\frac{1}{2}", "0.5", True),
        ("\\frac{1}{2}", "\\frac{2}{4}", True),
        ("\\frac{1}{2}", "0.51", False),
        ("\\{1, 2\\}", "\\{2, 1\\}", True),
        ("\\{1, 2\\}", "\\{1, 3\\}", False),
        ("[0, 1)", "[0,1)", True),
        ("[0, 1)", "[0, 1]", False),
        ("2\\sqrt{2}", "\\sqrt{8}", True),
        ("x^2 + 2x", "x(x + 2)", True),
        ("50", "50\\%", True),
        ("\\text{Monday}", "\\text{Monday}", True),
        ("\\text{Monday}", "\\text{Tuesday}", False),
        ("(1, 2)", "(2, 1)", False),
    ],
)
def test_expressions(verifier: Verifier, gold: str, answer: str, equal: bool) -> None:
    assert verifier([gold], [answer]) == [Verdict.CORRECT if equal else Verdict.INCORRECT]


def test_order_is_kept_and_verdicts_are_cached(verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    golds = ["\\frac{1}{2}", "3", "\\frac{1}{3}", "4", "\\frac{1}{2}"]
    answers = ["\\frac{4}{8}", "3", "\\frac{1}{4}", None, "\\frac{4}{8}"]
    C, I = Verdict.CORRECT, Verdict.INCORRECT  # noqa: E741
    assert verifier(golds, answers) == [C, C, I, I, C]

    def asked_again(pair: tuple[str, str]) -> Verdict:
        raise AssertionError(f"{pair} is cached")

    monkeypatch.setattr(verifier, "_by_algebra", asked_again)
    assert verifier(golds[::-1], answers[::-1]) == [C, I, I, C, C]


TOWERS = ["9^{9^{9^{9}}}", "10^{10^{10}}", "(10^9)!"]
HOSTILE = [
    "9**9**9**9",
    "{" * 500 + "5" + "}" * 500,
    "{" * 500,
    "}" * 500,
    "\\frac{" * 150,
    "\\sqrt{" * 100 + "25" + "}" * 100,
    "(" * 400 + "5" + ")" * 400,
    "5" * 1000,
    "NaN",
    "inf",
    "\\infty",
    "\\text{\\boxed{}}",
    "6} \\boxed{5",  # breaks out of the box that the worker puts it into
    "5\x006",
    "\x00",
    "\x01\x02\x1b[31m",
    "\ud800",
    "\ud800\udfff6",
    "6\n5",
    "\n\n",
    "correct\ncorrect",
    '["6", "6"]\n["5", "5"]',
    "\u2028\u202e",
    "__import__('os').getpid()",
    "\\input{/etc/passwd}",
    "%" * 900,
]


def test_numbers_beyond_floats_are_compared() -> None:
    verifier = Verifier(VerifierConfig(timeout_s=30.0))  # a slow machine takes more than a second for the first of them
    pairs = [("10^{400}\\sqrt{2}", "\\sqrt{2}\\cdot 10^{400}"), ("10^{400}\\sqrt{2}", "10^{401}\\sqrt{2}")]
    pairs += [("10^{-400}\\sqrt{2}", "10^{-401}\\sqrt{2}"), ("\\sin 30", "\\sin 30^\\circ"), ("\\sqrt{3}", "\\tan 60^\\circ")]
    verdicts = verifier(*zip(*pairs, strict=True))
    verifier.close()
    assert [v is Verdict.CORRECT for v in verdicts] == [True, False, False, False, True], verdicts


def test_hostile_answers_end_and_are_never_correct(verifier: Verifier) -> None:
    verifier(algebra(2)[0] * 2, [algebra(2)[1][0], "123 + 1"])  # the workers are up
    start = time.monotonic()
    towers = verifier(["5"] * len(TOWERS), TOWERS)
    towers_s = time.monotonic() - start
    assert towers == [Verdict.TIMEOUT] * len(TOWERS)
    assert towers_s < len(TOWERS) * LIMIT_S + 10  # and the starts of new workers
    verdicts = verifier(["5"] * len(HOSTILE), HOSTILE)
    assert Verdict.CORRECT not in verdicts, HOSTILE[verdicts.index(Verdict.CORRECT)]
    assert verifier(["\\frac{1}{2}", "\\frac{1}{2}"], ["3/6", "3/5"]) == [Verdict.CORRECT, Verdict.INCORRECT]


@pytest.mark.parametrize("piece", ["9", " ", "{", "\\frac", "%", "\\boxed{", "é"])
def test_a_million_characters_are_refused_at_once(verifier: Verifier, piece: str) -> None:
    text = "1" + piece * (1_000_000 // len(piece)) + "1"
    start = time.process_time()
    assert verifier(["5"], [text]) in ([Verdict.UNPARSEABLE], [Verdict.INCORRECT])
    assert time.process_time() - start < 1.0


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


def test_a_worker_that_dies_before_it_is_asked_ends_nothing(bereft: Bereft, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may die between the look whether it is alive and the question."""
    with monkeypatch.context() as patched:
        patched.setattr("oar_lightning.answers.verifier._Worker.alive", lambda worker: True)
        assert bereft.verifier(*algebra(3)) == [Verdict.TIMEOUT]
    assert bereft.verifier(*algebra(3)) == [Verdict.CORRECT]


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("0.67", "\\frac{2}{3} \\approx 0.67", Verdict.CORRECT),
        ("0.67", "x = \\frac{2}{3} ≈ 0.67", Verdict.CORRECT),
        ("1.414", "\\sqrt{2} \\approx 1.414", Verdict.CORRECT),
        ("0.67", "0.5 \\approx 0.67", Verdict.INCORRECT),
        ("12.5", "7 \\approx 12.5", Verdict.INCORRECT),
        ("0.67", "999 \\approx 0.67", Verdict.INCORRECT),
        ("0.66", "\\frac{2}{3} \\approx 0.66", Verdict.INCORRECT),
        ("0.5", "0.5 \\approx 0.67", Verdict.CORRECT),
    ],
)
def test_a_rounded_number_counts_where_it_rounds_what_stands_before_it(
    verifier: Verifier, gold: str, answer: str, expected: Verdict
) -> None:
    """Else one answer would be two guesses."""
    assert verifier([gold], [answer]) == [expected]


def test_close_ends_all_workers_and_the_next_verdict_starts_new_ones(verifier: Verifier) -> None:
    verifier.close()
    others = worker_pids(os.getpid())  # of other tests' verifiers
    assert verifier(*algebra(4)) == [Verdict.CORRECT]
    assert worker_pids(os.getpid()) - others
    verifier.close()
    assert worker_pids(os.getpid()) == others
    verifier.close()
    assert verifier(*algebra(5)) == [Verdict.CORRECT]


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


def test_several_threads_share_the_workers(verifier: Verifier) -> None:
    def check(number: int) -> bool:
        golds, answers = algebra(number + 1)
        return verifier([*golds, golds[0]], [*answers, f"{119 + number}"]) == [Verdict.CORRECT, Verdict.INCORRECT]

    verifier.close()
    others = worker_pids(os.getpid())
    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(check, range(1, 25)))
    assert len(worker_pids(os.getpid()) - others) <= verifier.config.workers


def test_a_worker_that_cannot_start_says_what_to_do() -> None:
    verifier = Verifier(VerifierConfig(memory_mb=1, workers=1))
    with pytest.raises(RuntimeError, match=r"verifier_worker.*memory_mb"):
        verifier(*algebra(2))
    assert verifier(["3"], ["3.0"]) == [Verdict.CORRECT]
    verifier.close()


@pytest.mark.parametrize("key", ["timeout_s", "memory_mb", "workers", "max_characters"])
def test_bad_limits_name_their_key(key: str) -> None:
    with pytest.raises(ValueError, match=rf"verifier\.{key} must be (> 0|>= 1), got 0"):
        VerifierConfig(**{key: 0})


HOSTILE_PIECES = [
    "9^{",
    "}",
    "{",
    "(",
    ")",
    "[",
    ",",
    "\\frac{",
    "\\sqrt[",
    "\\boxed{",
    "9" * 30,
    "!",
    "^",
    "_",
    "x",
    "\\text{",
    "=",
    "<",
]
HOSTILE_PIECES += [
    "\\binom{99}{50}",
    "\\sum_{n=1}^{\\infty}",
    "\\begin{pmatrix}",
    "\\end{pmatrix}",
    "\\\\",
    "&",
    "\x00",
    "\ud800",
    "NaN",
    "\\infty",
]
HOSTILE_PIECES += [
    "\\int",
    "\\lim_{x\\to 0}",
    "10^{10^{10}}",
    "\\%",
    "$",
    " ",
    "1",
    "2",
    "+",
    "-",
    "\\cdot",
    "\\pm",
    "\\cup",
    "\\mathbb{R}",
]


def test_any_text_ends_within_the_limit_and_is_not_the_golds_equal() -> None:
    """The gold is a number that no such text denotes but as itself."""
    verifier = Verifier(VerifierConfig(timeout_s=LIMIT_S, workers=2, memory_mb=768))
    gold = "31415926535897"

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.lists(st.sampled_from(HOSTILE_PIECES), max_size=25).map("".join), min_size=4, max_size=4))
    def check(answers: list[str]) -> None:
        start = time.monotonic()
        verdicts = verifier([gold] * 4, answers)
        assert time.monotonic() - start < 4 * (LIMIT_S + 6)
        assert Verdict.CORRECT not in verdicts

    try:
        check()
        assert verifier(*algebra(7)) == [Verdict.CORRECT]
    finally:
        verifier.close()


def test_throughput_of_ordinary_answers() -> None:
    """No wall-clock bar here (machines differ): most ordinary answers must be settled without a worker."""
    golds = [
        "18",
        "\\frac{3}{4}",
        "2\\sqrt{3}",
        "x^2 + 2x + 1",
        "\\text{Monday}",
        "5\\text{ cm}",
        "(1, 2)",
        "[0, \\infty)",
        "12\\pi",
        "-\\frac{1}{2}",
    ]
    answers = ["18.0", "0.75", "\\sqrt{12}", "(x+1)^2", "monday", "5", "(1,2)", "x \\ge 0", "12 \\pi", "-0.5"]
    before = worker_pids(os.getpid())
    verifier = Verifier()
    assert verifier(golds, answers) == [Verdict.CORRECT] * len(golds)
    assert worker_pids(os.getpid()) == before


UNREADABLE = [
    "3 + \\frac{1}{2} + \\cdots",
    "5 \\gg \\frac{1}{2}",
    "\\frac{1}{2} \\in S",
    "\\frac{1}{3} @ \\frac{1}{2}",
    "\\left[\\frac{1}{2}, 3\\right.",
]


@pytest.mark.parametrize("answer", UNREADABLE)
def test_an_answer_that_cannot_be_read_is_not_judged_by_a_part_of_it(verifier: Verifier, answer: str) -> None:
    assert verifier(["\\frac{1}{2}"], [answer]) != [Verdict.CORRECT]


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
