"""Verdicts: the exact path, math-verify in workers, hostile answers."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.verifier_workers import LIMIT_S, TOWERS, algebra, worker_pids

from oar_lightning.answers.verifier import Verdict, Verifier, VerifierConfig


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
        ("\\cos 2t", "\\cos 2", False),  # letters that could be units are no units behind a function or a root
        ("\\sin 2t", "\\sin 2s", False),
        ("\\sqrt3 s", "\\sqrt3", False),
        ("x_0+v_0 t", "x_0+v_0", False),
        ("\\sin^2 t", "\\sin^{2} t", True),
        ("\\sin^2 t", "\\sin^2 m", False),
        ("\\cos 2t", "2\\cos^2(t)-1", True),
        ("A", "(A) or B", False),
        ("A", "(A), B", False),
        ("\\text{(A)}", "\\text{(A) or B}", False),
        ("A", "(A) maybe B", False),
        ("C", "(C) 12 or D", False),
        ("\\text{(C)}", "\\text{(C)} \\text{ or } \\text{D}", False),
        ("A", "(A) 12", True),
        ("\\tan\\left(15^\\circ\\right)", "2-\\sqrt3", True),
        ("\\cos(6^\\circ)", "\\cos\\left(6^\\circ\\right)", True),
        ("\\sin\\left(10^\\circ\\right)", "\\sin 10", False),
        ("\\tan 15^\\circ", "\\tan 15\\text{ degrees}", True),
        ("120", "5! = 120", True),
        ("120", "6! = 120", False),
        ("120", "5 != 120", False),
        ("10", "\\binom{5}{2} = 10", True),
        ("10", "\\binom{6}{2} = 10", False),
        ("505", "505_{10}", True),
        ("-5", "-5_{\\text{ten}}", True),
        ("505", "505_{8}", False),
        ("T_{10}", "T", False),
        ("A", "A_{10}", False),
        ("101_2", "101_{10}", False),
        ("6, 8\\text{, and }10", "10, 8, 6", True),
        ("6, 8\\text{, and }10", "6, 8, 11", False),
    ],
)
def test_expressions(patient: Verifier, gold: str, answer: str, equal: bool) -> None:
    assert patient([gold], [answer]) == [Verdict.CORRECT if equal else Verdict.INCORRECT]


def test_order_is_kept_and_verdicts_are_cached(patient: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    golds = ["\\frac{1}{2}", "3", "\\frac{1}{3}", "4", "\\frac{1}{2}"]
    answers = ["\\frac{4}{8}", "3", "\\frac{1}{4}", None, "\\frac{4}{8}"]
    C, I = Verdict.CORRECT, Verdict.INCORRECT  # noqa: E741
    assert patient(golds, answers) == [C, C, I, I, C]

    def asked_again(pair: tuple[str, str]) -> Verdict:
        raise AssertionError(f"{pair} is cached")

    monkeypatch.setattr(patient, "_by_algebra", asked_again)
    assert patient(golds[::-1], answers[::-1]) == [C, I, I, C, C]


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


def test_numbers_beyond_floats_are_compared(patient: Verifier) -> None:
    pairs = [("10^{400}\\sqrt{2}", "\\sqrt{2}\\cdot 10^{400}"), ("10^{400}\\sqrt{2}", "10^{401}\\sqrt{2}")]
    pairs += [("10^{-400}\\sqrt{2}", "10^{-401}\\sqrt{2}"), ("\\sin 30", "\\sin 30^\\circ"), ("\\sqrt{3}", "\\tan 60^\\circ")]
    verdicts = patient(*zip(*pairs, strict=True))
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
    patient: Verifier, gold: str, answer: str, expected: Verdict
) -> None:
    """Else one answer would be two guesses."""
    assert patient([gold], [answer]) == [expected]


@pytest.mark.parametrize("key", ["timeout_s", "memory_mb", "workers", "max_characters"])
def test_bad_limits_name_their_key(key: str) -> None:
    with pytest.raises(ValueError, match=rf"verifier\.{key} must be (finite and > 0|>= 1), got 0"):
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
def test_an_answer_that_cannot_be_read_is_not_judged_by_a_part_of_it(patient: Verifier, answer: str) -> None:
    assert patient(["\\frac{1}{2}"], [answer]) != [Verdict.CORRECT]


def test_a_worker_that_dies_at_its_start_is_told_with_its_exit_code() -> None:
    golds, answers = algebra(1)
    verifier = Verifier(VerifierConfig(memory_mb=1))
    with pytest.raises(RuntimeError, match=r"worker ended with exit code -?[1-9]\d*; check .* verifier's memory_mb"):
        verifier(golds, answers)
    verifier.close()
