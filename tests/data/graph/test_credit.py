"""What decides a `graph` completion: against the generator's own spans, recomputation by hand, and planted errors."""

from __future__ import annotations

import dataclasses
import random

import pytest
from support.graph_reading import STEP, statements, value

from oar_lightning.data.graph.credit import GraphCredit, step_ends
from oar_lightning.data.graph.problem import Formula, GraphProblem, read_question
from oar_lightning.data.graph.task import GraphProblems, GraphTask
from oar_lightning.types import MathProblem

# nuts = 3, cups = 2, keys = 3 + 2 = 5, pens = 5 - 3 = 2; eggs = 1 is not needed
PENS = GraphProblem(
    7,
    {
        "pens": Formula("keys", "-", "nuts"),
        "nuts": 3,
        "eggs": Formula("nuts", "-", "cups"),
        "cups": 2,
        "keys": Formula("nuts", "+", "cups"),
    },
    "pens",
)
MATH = MathProblem(PENS.question, str(PENS.answer), source="graph")


def pieces(text: str, which: str, problem: MathProblem = MATH) -> list[str]:
    """The located characters, each with those before it, which tell places apart."""
    return [text[max(a - 2, 0) : a] + "|" + text[a:b] for a, b in GraphCredit(which)(problem, text).spans]  # type: ignore[arg-type]


@pytest.mark.parametrize("asides", [0, 2])
def test_causal_is_what_the_generator_says(asides: int) -> None:
    task = GraphTask(depth=3, min_steps=3, max_steps=4, needless=0.4, asides=asides)
    rng = random.Random(0)
    for _ in range(100):
        problem = task.problem(rng, held_out=False)
        solution = task.solution(problem, rng)
        math = MathProblem(problem.question, str(problem.answer), source="graph")
        found = GraphCredit("causal")(math, solution.text)
        assert list(found.spans) == list(solution.causal_spans[:-1]), "all but the answer"
        results = GraphCredit("results")(math, solution.text).spans
        assert len(results) == problem.steps
        assert set(results) <= set(found.spans)


def planted(problem: MathProblem, rng: random.Random) -> tuple[str, tuple[int, int]]:
    """A flawless solution in which one operand or operator is replaced and all that follows recomputed, and where that is."""
    told = statements(problem.question)[1]
    graph = read_question(problem.question)
    assert graph is not None
    flawless = GraphTask().solution(graph, rng, flaws=0).text
    steps = STEP.findall(flawless)
    changed, group = rng.randrange(len(steps)), rng.choice(("left", "sign", "right"))
    stated = {name: int(text) for name, text in told.items() if text.isdigit()}
    text, place = flawless.splitlines()[0], (0, 0)
    for number, (name, left, sign, right, *_) in enumerate(steps):
        parts = {"left": left, "sign": sign, "right": right}
        if number == changed:
            others = {"+", "-", "*"} - {sign} if group == "sign" else stated.keys() - {left, right}
            parts[group] = rng.choice(sorted(others))
        text += f"\nSo {name} is"
        for part, word in parts.items():
            place = (len(text) + 1, len(text) + 1 + len(word)) if (number, part) == (changed, group) else place
            text += f" {word}"
        stated[name] = eval(f"{stated[parts['left']]}{parts['sign']}{stated[parts['right']]}") % 5
        text += "".join(f"; {n}={stated[n]}" for n in (parts["left"], parts["right"], name)) + "."
    return f"{text}\nThe answer is \\boxed{{{stated[name]}}}.", place


def test_first_error_is_the_one_that_was_planted() -> None:
    rng = random.Random(5)
    source = GraphProblems(GraphTask(depth=3, min_steps=3, max_steps=4))
    right = 0
    for i in range(120):
        text, place = planted(source[i], rng)
        found = GraphCredit("first_error")(source[i], text)
        assert found.exact
        if f"\\boxed{{{value(source[i].question)}}}" in text:
            right += 1
            assert len(found.spans) == 4 * int(source[i].level), "a name in the plan, two operands and an operator"
        else:
            assert found.spans == (place,)
    assert 10 < right < 80


RIGHT = "So keys is nuts + cups; nuts=3; cups=2; keys=5.\nSo pens is keys - nuts; keys=5; nuts=3; pens=2.\n\\boxed{2}."


@pytest.mark.parametrize(
    ("keys", "pens", "expected"),
    [
        (
            "nuts + cups; nuts=3; cups=2; keys=5",
            "keys - nuts; keys=5; nuts=3; pens=2",
            ["s |nuts", "s |+", "+ |cups", "s |keys", "s |-", "- |nuts"],
        ),
        ("nuts - cups; nuts=3; cups=2; keys=1", "keys - nuts; keys=1; nuts=3; pens=5", ["s |-"]),
        ("nuts + nuts; nuts=3; nuts=3; keys=6", "keys - nuts; keys=6; nuts=3; pens=3", ["+ |nuts"]),
        # either operand may come first, but once
        ("cups + cups; cups=2; cups=2; keys=4", "keys - nuts; keys=4; nuts=3; pens=1", ["+ |cups"]),
        ("nuts + cups; nuts=3; cups=2; keys=5", "cups - nuts; cups=2; nuts=3; pens=6", ["s |cups"]),
        ("nuts + cups; nuts=3; cups=2; keys=6", "keys - nuts; keys=6; nuts=3; pens=3", ["s=|6"]),
        ("nuts + cups; nuts=4; cups=2; keys=6", "keys - nuts; keys=6; nuts=3; pens=3", ["s=|4"]),
        ("nuts + cups; nuts=3; cups=2; keys=5", "keys - nuts; keys=5; nuts=2; pens=3", ["s=|2"]),
        # an unknown quantity
        ("nuts + cups; nuts=3; cups=2; keys=5", "books - nuts; books=6; nuts=3; pens=3", ["s |books"]),
        ("nuts + cups; nuts=3; cups=2; keys=5", "keys - books; keys=5; books=1; pens=4", ["- |books"]),
        ("", "keys - nuts; keys=4; nuts=3; pens=1", ["s=|4"]),  # read off without its step
        # the first slip is made good
        ("nuts - cups; nuts=3; cups=2; keys=1", "keys - nuts; keys=5; nuts=3; pens=1", ["s=|1"]),
    ],
)
def test_first_error_by_hand(keys: str, pens: str, expected: list[str]) -> None:
    text = f"So keys is {keys}.\nSo pens is {pens}.\n\\boxed{{{pens[-1]}}}."
    assert pieces(text, "first_error") == expected
    assert GraphCredit("first_error")(MATH, text).exact


@pytest.mark.parametrize(
    "text", [RIGHT.replace("boxed{2}", "boxed{4}"), RIGHT.replace("\\boxed{2}", ""), RIGHT.split("So pens")[0]]
)
def test_an_error_outside_the_steps_falls_back_to_the_decisions(text: str) -> None:
    found = GraphCredit("first_error")(MATH, text)
    assert not found.exact
    assert [text[a:b] for a, b in found.spans] == ["nuts", "+", "cups", "keys", "-", "nuts"][: len(found.spans)]
    assert found.spans


PLAN = "Needed: pens keys.\n"
KEYS = "So keys is nuts + cups; nuts=3; cups=2; keys=5.\n"


@pytest.mark.parametrize(
    ("plan", "steps", "expected"),
    [
        # pens before keys, which it is computed from, is known
        (PLAN, "So pens is keys - nuts; nuts=3; pens=1.\n", ["o |pens"]),
        (PLAN, KEYS + "So pens is keys - nuts; keys=5; pens=1.\n", ["; |pens"]),
        (PLAN, KEYS + "So pens keys; pens=1.\n", ["ns| keys"]),
        (PLAN, KEYS + "So pens is keys nuts;;2==\n", ["ys| nuts"]),
        (PLAN, KEYS + "So books is cups - nuts; cups=2.\n", ["o |books"]),
        (PLAN, KEYS + "= keys.\n", [".\n|="]),
        (PLAN, KEYS + "So pens is keys\n", ["ey|s"]),
        # the plan leaves keys out
        ("Needed: pens.\n", "So keys is nuts - cups; nuts=3; cups=2; keys=1.\n", ["ns|."]),
        # what is no step comes first, but is made good
        (
            PLAN,
            "So pens is keys - nuts; nuts=3; pens=1.\n" + KEYS + "So pens is keys + nuts; keys=5; nuts=3; pens=1.\n",
            ["s |+"],
        ),
    ],
)
def test_a_line_that_is_no_step_is_wrong_where_it_ceases_to_be_one(plan: str, steps: str, expected: list[str]) -> None:
    text = f"{plan}{steps}The answer is \\boxed{{1}}."
    assert pieces(text, "first_error") == expected
    assert GraphCredit("first_error")(MATH, text).exact
    assert len(pieces(text, "causal")) % 6 == 0, "parts of steps alone"


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("pens keys.", ["o |pens"]),  # right: where the steps go wrong
        ("keys pens.", [": |keys"]),  # keys before pens, which needs it
        ("pens nuts keys.", ["s |nuts"]),  # is given
        ("pens rings keys.", ["s |rings"]),  # is not there
        ("pens.", ["ns|."]),
        ("pens", ["o |pens"]),  # may go on
        ("pens eggs keys.", ["o |pens"]),  # not needed, which does no harm
        ("pens keys lamps.", ["s |lamps"]),  # not needed, and after keys, which it is computed from
        ("pens lamps keys.", ["o |pens"]),
        ("pens keys keys.", ["o |pens"]),
    ],
)
def test_a_plan_is_wrong_where_it_cannot_be_computed_backwards(plan: str, expected: list[str]) -> None:
    problem = dataclasses.replace(PENS, definitions={**PENS.definitions, "lamps": Formula("keys", "*", "cups")})
    math = MathProblem(problem.question, str(problem.answer))
    steps = "So pens is keys - nuts; nuts=3; pens=1.\n"
    text = f"Needed: {plan}\n{steps}The answer is \\boxed{{1}}."
    assert pieces(text, "first_error", math) == expected
    names = plan.removesuffix(".").split()
    wrong = [expected[0].split("|")[1]] if expected != ["o |pens"] else []
    before = names[: names.index(wrong[0])] if wrong and wrong[0] in names else names
    assert [found.split("|")[1] for found in pieces(text, "right", math)] == before
    made_good = f"Needed: {plan}\n{RIGHT}"
    assert pieces(made_good, "wrong", math) == [], "not followed"
    assert len(pieces(made_good, "right", math)) == len(names) + 6


def test_right_decisions_end_where_it_goes_wrong() -> None:
    text = RIGHT.replace("keys - nuts; keys=5; nuts=3; pens=2.\n\\boxed{2}", "keys + nuts; keys=5; nuts=3; pens=1.\n\\boxed{1}")
    assert pieces(text, "right") == ["s |nuts", "s |+", "+ |cups", "s |keys"]
    assert pieces(text, "wrong") == ["s |+"]
    assert pieces(RIGHT, "right") == pieces(RIGHT, "first_error")
    assert pieces(RIGHT, "wrong") == []


def test_asides_are_passed_over() -> None:
    asides = "Now eggs pens nuts cups.\nHere keys rings.\n"
    text = f"{PLAN}{asides}{KEYS}{asides}So pens is keys + nuts; keys=5; nuts=3; pens=1.\n{asides}"
    assert pieces(f"{text}The answer is \\boxed{{1}}.", "first_error") == ["s |+"]
    assert not GraphCredit("first_error")(MATH, f"{PLAN}{KEYS}Well pens").exact, "cut off inside an aside"
    garbled = f"{PLAN}{KEYS}Here keys = rings.\nThe answer is \\boxed{{1}}."
    assert pieces(garbled, "first_error") == ["ys| ="]


def test_what_does_not_matter_is_no_error() -> None:
    """Swapped operands of a sum, a slip in a needless step, and a wrong operand of the same value."""
    text = "So eggs is cups - nuts; cups=2; nuts=3; eggs=0.\n"
    text += RIGHT.replace("nuts + cups; nuts=3; cups=2", "cups + nuts; cups=2; nuts=3")
    wrong = text.replace("keys - nuts", "keys + nuts").replace("pens=2.\n\\boxed{2}", "pens=1.\n\\boxed{1}")
    assert pieces(wrong, "first_error") == ["s |+"]
    assert len(pieces(text, "causal")) == 12
    same = dataclasses.replace(PENS, definitions={**PENS.definitions, "nuts": 2})  # keys = 4, pens = 2
    math = MathProblem(same.question, str(same.answer))
    text = "So keys is cups + cups; cups=2; cups=2; keys=4.\nSo pens is keys + nuts; keys=4; nuts=2; pens=6.\n\\boxed{6}."
    assert pieces(text, "first_error", math) == ["s |+"]


@pytest.mark.parametrize("which", ["causal", "results", "first_error"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\\boxed{2}",
        "keys is nuts + cups; nuts=3; cups=2; pens=5",
        "keys is nuts + cups; cups=2; nuts=3; keys=5",
        "nuts is cups + cups; cups=2; cups=2; nuts=4",
        f"keys is nuts + cups; nuts={'9' * 5000}",
        "\\boxed{" + "9" * 5000 + "}",
    ],
)
def test_without_a_readable_step_there_is_nothing(which: str, text: str) -> None:
    assert pieces(text, which) == []


def test_steps_end_at_their_results() -> None:
    assert [RIGHT[:end].rsplit(" ", 1)[1] for end in step_ends(MATH, RIGHT)] == ["keys=5", "pens=2"]


def test_problems_of_other_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scorer\.locate reads problems of data=graph only.*use another scorer"):
        GraphCredit()(MathProblem("What is 2+2?", "many"), "2+2=4")
