"""Overlap of training and evaluation problems: what counts as the same, against a plain search; the rules of a stream."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oar_lightning.data import decontamination
from oar_lightning.data.decontamination import Contamination, Finding, find_contamination, normalized
from oar_lightning.data.files import FileProblems
from oar_lightning.data.filters import AnyOf, Decontamination, PromptLength
from oar_lightning.data.prompts import PlainPrompt
from oar_lightning.types import MathProblem

WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


def problem(question: str, id: str = "") -> MathProblem:
    return MathProblem(question, "1", id=id)


def reason(train: str, *evaluation: str) -> str | None:
    return Contamination(problem(e) for e in evaluation).reason(problem(train))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("What is $2+2$?", "what is 2 + 2"),
        ("A well-known,  LONG story.\n", "a well known long story!"),
        ("Find $\\frac{1}{2}\\,x$.", "find \\frac 1 2 x"),
        ("\uff11\uff10 Straßen", "10 strassen"),
        ("What is 7 \u2212 3?", "What is 7 - 3?"),
        ("What is 7 \u00d7 3?", "What is 7 * 3?"),
        ("x \u2264 3", "x <= 3"),
        ("What is (2 + 3) * 4?", "What is ( 2 + 3 ) * 4?"),
        ("( 10 + x )^2", "(10+x)^2"),
        ("f( x )", "f(x)"),
        ("5 !", "5!"),
        ("3 : 4", "3:4"),
    ],
)
def test_the_same_text_but_for_its_look(a: str, b: str) -> None:
    assert reason(a, "something else", b) == reason(b, a) == "exact"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("What is 2+3?", "What is 2-3?"),
        ("x < 3", "x > 3"),
        ("2*3", "2/3"),
        ("2^3", "23"),
        ("a b", "ab"),
        ("1.5", "15"),
        ("7 \u2212 3", "7 \u00d7 3"),
        ("7 \u00f7 3", "7 3"),
        ("x \u2264 3", "x \u2265 3"),
    ],
)
def test_texts_that_mean_something_else(a: str, b: str) -> None:
    assert reason(a, b) is None


def test_nothing_but_punctuation_is_like_nothing() -> None:
    assert reason("?!", "...") is None
    assert reason("?!") is None


def test_thirteen_words_in_a_row_and_not_twelve() -> None:
    words = WORDS.split()
    assert reason("Start here: " + " ".join(words[:13]) + ", end.", "Other start " + WORDS) == "13-gram"
    assert reason("Start here: " + " ".join(words[:12]) + ", end.", "Other start " + WORDS) is None
    assert reason(" ".join([*words[:6], "x", *words[6:]]), WORDS) is None
    assert reason("Sum: " + " + ".join(words[:13]), WORDS) == "13-gram", "operators are no words"


@pytest.mark.parametrize(("shared", "expected"), [(15, "13-gram"), (14, None)])
def test_three_fifths_of_the_words_in_common_are_enough(shared: int, expected: str | None) -> None:
    """Of 25 words 15 in a row; all others differ."""
    train, evaluation = ([f"both{i}" for i in range(shared)] + [f"{own}{i}" for i in range(25 - shared)] for own in ("a", "b"))
    assert reason(" ".join(train), " ".join(evaluation)) == expected


def test_the_whole_text_comes_before_a_part_of_it() -> None:
    known = Contamination([problem("Prefix " + WORDS, "part"), problem(WORDS, "whole")])
    assert known.match(problem(WORDS.upper())) == ("whole", "exact")
    assert known.match(problem(WORDS + " more")) == ("part", "13-gram")


def common_length(first: list[str], second: list[str]) -> int:
    """The table of the longest common subsequences of all beginnings, by its recurrence."""
    table = np.zeros((len(first) + 1, len(second) + 1), int)
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            table[i + 1, j + 1] = table[i, j] + 1 if a == b else max(table[i, j + 1], table[i + 1, j])
    return int(table[-1, -1])


def test_common_words_against_the_table() -> None:
    draw = random.Random(0)
    for _ in range(200):
        first, second = (draw.choices("abcd", k=draw.randint(1, 90)) for _ in range(2))
        expected = common_length(first, second) / min(len(first), len(second))
        assert decontamination._common_share(first, second) == pytest.approx(expected)


def test_what_many_problems_say_is_no_contamination() -> None:
    """The end of most AIME problems, after problems that have nothing else in common."""
    end = "is m over n where m and n are relatively prime positive integers find m plus n"
    held = "a fair die is rolled until a six has come twice and the chance that this takes more than nine rolls " + end
    other = "a circle with a radius of twelve inches goes around an equilateral triangle, and the share of its area outside "
    assert len(end.split()) > decontamination.NGRAM
    assert reason(other + end, held) is None
    assert reason("now " + held.replace("nine rolls", "seven rolls"), held) == "13-gram"
    assert reason(f"Solve each of these. {held}. Then explain {'why ' * 200}", held) == "13-gram", "a part of a long text"


def test_a_report_counts_and_names() -> None:
    train = [problem(WORDS + " a", "t0"), problem("new", "t1"), problem("Same?", "t2"), problem("same", "t3")]
    found = find_contamination(
        iter(train), {"x": [problem("SAME", "x0")], "y": iter([problem(WORDS, "y0"), problem("same!", "y1")])}
    )
    assert found.findings == [
        Finding("t0", "y", "y0", "13-gram"),
        Finding("t2", "x", "x0", "exact"),
        Finding("t2", "y", "y1", "exact"),
        Finding("t3", "x", "x0", "exact"),
        Finding("t3", "y", "y1", "exact"),
    ]
    assert (found.train_problems, found.contaminated, found.eval_sets) == (4, 3, {"x": 1, "y": 2})
    assert [found.count(b, k) for b in "xy" for k in ("exact", "13-gram")] == [2, 0, 2, 1]


def test_rules_for_a_stream() -> None:
    tokenizer: Any = lambda text, add_special_tokens: SimpleNamespace(input_ids=text.split())  # noqa: E731
    length = PromptLength(PlainPrompt("Question: {question}"), tokenizer, 4)
    assert [length(problem(" ".join("abcd"[:n]))) for n in (1, 3, 4)] == [None, None, "prompt too long"]
    held = Decontamination(Contamination([problem("a b c d")]))
    assert held(problem("A b, c d!")) == "contaminated exact"
    both = AnyOf((held, length))
    assert [both(problem(q)) for q in ("a b c d", "a b c d e", "a")] == ["contaminated exact", "prompt too long", None]
    assert AnyOf(())(problem("a")) is None


SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared folder of real data beside the checkout")
def test_real_sets_against_a_plain_search() -> None:
    """MATH-500 holds no problem of MATH's training split word by word; shared runs of words are found by text search too."""
    train = list(FileProblems(str(SHARED / "math_train.jsonl.gz")))
    held = list(FileProblems(str(SHARED / "math500.jsonl")))
    found = find_contamination(train, {"math500": held})
    assert (found.train_problems, found.eval_sets) == (7498, {"math500": 500})

    def words(text: str) -> str:
        return " " + " ".join(re.findall(r"[a-z0-9]+", text.lower().replace("_", " "))) + " "

    questions = {p.id: p.question for p in itertools.chain(train, held)}
    assert found.count("math500", "13-gram") > 0
    for finding in found.findings:
        a, b = words(questions[finding.train]), words(questions[finding.problem])
        runs = b.split()
        shared = any(f" {' '.join(runs[i : i + 13])} " in a for i in range(len(runs) - 12))
        assert shared or (finding.kind == "exact" and a == b), finding
    assert find_contamination(held, {"math500": held}).contaminated == 500
    assert normalized(train[0].question) != normalized(held[0].question)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("(2+3)*4", "2+(3*4)"),
        ("What is 5!", "What is 5."),
        ("|x|-3=2", "x-3=2"),
        ("10% of 50", "10 of 50"),
        ("1:2", "1 2"),
        ("12.5+3", "12 5+3"),
        ("(x+1)(x-1)", "x+1(x-1)"),
    ],
)
def test_signs_that_change_a_short_problem_are_its_text(a: str, b: str) -> None:
    assert reason(a, b) is None
    assert reason(a, f" {a} ") == "exact"


def test_brackets_around_indices_are_kept_in_pairs() -> None:
    assert normalized("(a_1+a_2)").count("(") == normalized("(a_1+a_2)").count(")") == 1
