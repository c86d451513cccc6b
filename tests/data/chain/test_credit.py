"""What decides a `chain` completion: against the generator's own spans, and errors planted by hand."""

from __future__ import annotations

import random
import re
from typing import Any, Literal

import pytest

from oar_lightning.data.chain.credit import ChainCredit
from oar_lightning.data.chain.problem import Account, ChainProblem, Companion, asked_accounts
from oar_lightning.data.chain.task import ChainTask
from oar_lightning.types import MathProblem

ANN = ChainProblem("Ann", "pens", 7, (4, -2), ("buys", "loses"))
BOTH = ChainProblem("Ann", "pens", 7, (4, -2), ("buys", "loses"), Companion("Ben", 3, (1, 2), ("wins", "gets"), True))
VARIANTS: list[dict[str, Any]] = [
    {},
    {"restate": False},
    {"filler": 0, "asides": 2},
    {"asides": 1, "asides_last": True, "restate": False},
    {"companion": "distracts"},
    {"companion": "counts", "restate": False, "filler": 3},
    {"ask": "each"},
    {"asides": 1, "asides_last": "either", "restate": "either", "tell_form": True},
]


def math(problem: ChainProblem) -> MathProblem:
    return MathProblem(problem.question, str(problem.answer), source="chain")


def pieces(text: str, which: str, problem: ChainProblem = ANN) -> list[str]:
    """The located characters, each with the two before it, which tell places apart."""
    return [text[max(a - 2, 0) : a] + "|" + text[a:b] for a, b in ChainCredit(which)(math(problem), text).spans]  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_causal_is_what_the_generator_says(variant: dict[str, Any]) -> None:
    task = ChainTask(**variant)
    rng = random.Random(0)
    for _ in range(150):
        problem = task.problem(rng, held_out=False)
        solution = task.solution(problem, rng)
        found = ChainCredit("causal")(math(problem), solution.text)
        answer = solution.text.rindex("{")
        assert list(found.spans) == [span for span in solution.causal_spans if span[0] < answer]
        results = ChainCredit("results")(math(problem), solution.text).spans
        assert set(results) <= set(found.spans)
        assert all(solution.text[a - 1] == "=" for a, _ in results)
        people = 2 if variant.get("companion") == "counts" else 1
        assert len(results) == people * len(problem.deltas)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_first_error_is_where_a_noisy_solution_left_the_right_one(variant: dict[str, Any]) -> None:
    """The same draws with and without noise differ first at the first wrong result."""
    task = ChainTask(**variant)
    seen = {"right": 0, "wrong": 0}
    for seed in range(300):
        problem = task.problem(random.Random(seed), held_out=False)
        noisy = task.solution(problem, random.Random(seed), noise=0.3).text
        found = ChainCredit("first_error")(math(problem), noisy)
        right = [int(n) for n in re.findall(r"=(\d+)", task.solution(problem, random.Random(seed), noise=0.0).text)]
        taken = [(int(m[1]), m.span(1)) for m in re.finditer(r"=(\d+)", noisy)]
        if variant.get("companion") == "distracts":
            right, taken = right[::2], taken[::2]
        assert found.exact
        if f"\\boxed{{{problem.answer}}}" in noisy:  # errors may cancel out
            assert [s for _, s in taken] == list(found.spans)
            seen["right"] += 1
        else:
            first = next(span for (value, span), expected in zip(taken, right, strict=True) if value != expected)
            assert found.spans == (first,)
            seen["wrong"] += 1
    assert min(seen.values()) > 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("So 7+4=11 pens.\n11-2=9 pens.\n\\boxed{9}.", ["4=|11", "2=|9"]),
        ("So 7+4=12 pens.\n12-2=9 pens.\n\\boxed{9}.", ["4=|12", "2=|9"]),  # two errors cancel: the answer is right
        ("So 7+4=12 pens.\n12-2=10 pens.\n\\boxed{10}.", ["4=|12"]),
        ("So 7+4=11 pens.\n11-2=8 pens.\n\\boxed{8}.", ["2=|8"]),
        ("So 7-4=3 pens.\n3-2=1 pens.\n\\boxed{1}.", [" 7|-"]),  # the wrong operator
        ("So 7+5=12 pens.\n12-2=10 pens.\n\\boxed{10}.", ["7+|5"]),  # the wrong operand
        ("So 8+4=12 pens.\n12-2=10 pens.\n\\boxed{10}.", ["o |8"]),  # the wrong start
        ("So 7+4=11 pens.\n10-2=8 pens.\n\\boxed{8}.", [".\n|10"]),  # a result copied wrongly
        ("So 7+4=11 pens.\n11-2=9 pens.\n9+1=10 pens.\n\\boxed{10}.", [".\n|9"]),  # a step too many begins here
        ("So 7+4=12 pens.\n-2=10 pens.\n\\boxed{10}.", ["4=|12"]),  # not restated
        ("So 7+4=12", ["4=|12"]),  # no answer at all
    ],
)
def test_first_error_by_hand(text: str, expected: list[str]) -> None:
    assert pieces(text, "first_error") == expected
    assert ChainCredit("first_error")(math(ANN), text).exact


@pytest.mark.parametrize(
    "text", ["So 7+4=11 pens.\nThe answer is \\boxed{11}.", "7+4=11 pens.\n11-2=9 pens.\n\\boxed{8}.", "7+4=11 pens.\n11-2=9"]
)
def test_an_error_outside_the_steps_falls_back_to_the_results(text: str) -> None:
    found = ChainCredit("first_error")(math(ANN), text)
    assert found == ChainCredit("results")(math(ANN), text)._replace(exact=False)
    assert found.spans


@pytest.mark.parametrize("which", ["causal", "results", "first_error"])
@pytest.mark.parametrize("text", ["", "The answer is \\boxed{4}.", "Ben: 7+4=11", "7+=11 and 4=4"])
def test_without_a_readable_step_there_is_nothing(which: str, text: str) -> None:
    assert pieces(text, which) == []


def test_two_people_by_hand() -> None:
    text = "Ann: 7+4=11.\nBen: 3+1=5.\nAnn: 11-2=9.\nBen: 5+2=7.\n\\boxed{16}."
    assert BOTH.answer == 15
    assert pieces(text, "results", BOTH) == ["4=|11", "1=|5", "2=|9", "2=|7"]
    assert pieces(text, "first_error", BOTH) == ["1=|5"]
    text = text.replace("Ben: 5+2=7", "Cleo: 5+2=7").replace("3+1=5", "3+1=4")
    assert pieces(text, "results", BOTH) == ["4=|11", "1=|4", "2=|9"]


COMPANIONS: tuple[Literal["none", "distracts", "counts"], ...] = ("none", "distracts", "counts")


def test_questions_are_read_back() -> None:
    rng = random.Random(2)
    for task in (*(ChainTask(companion=kind) for kind in COMPANIONS), ChainTask(ask="each")):
        for _ in range(200):
            problem = task.problem(rng, held_out=False)
            expected = {problem.name: Account(problem.start, problem.deltas)}
            if problem.companion is not None and problem.companion.counts:
                expected[problem.companion.name] = Account(problem.companion.start, problem.companion.deltas)
            assert asked_accounts(problem.question) == expected


@pytest.mark.parametrize(
    "question",
    ["What is 2+2?", "Ann has 7 pens. How many does she have?", "Ann has 7 pens. Ann juggles 2. How many pens are left?"],
)
def test_problems_of_other_tasks_are_refused(question: str) -> None:
    assert asked_accounts(question) is None
    with pytest.raises(ValueError, match=r"scorer\.locate reads problems of data=chain only.*use another scorer"):
        ChainCredit()(MathProblem(question, "4"), "2+2=4")


def test_an_unknown_choice_names_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"scorer\.locate\.which must be one of causal, results, first_error, right, wrong, got 'all'"
    ):
        ChainCredit("all")  # type: ignore[arg-type]
