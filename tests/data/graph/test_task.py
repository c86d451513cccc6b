"""`graph`: solutions against an independent reading of their text, the rates of their flaws, and settings that cannot be."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import re
from typing import Any

import pytest
from support.graph_reading import STEP, ancestors, statements, value

from oar_lightning.answers.span import gold_answer
from oar_lightning.data.generated import OPENERS
from oar_lightning.data.graph.problem import ITEMS, GraphProblem
from oar_lightning.data.graph.task import GraphProblems, GraphTask
from oar_lightning.data.stream import ProblemSource, is_endless

TASK = GraphTask(depth=3, min_steps=3, max_steps=4, wrong_operator=0.1)


def draw(task: GraphTask, count: int) -> list[GraphProblem]:
    rng = random.Random(0)
    return [task.problem(rng, held_out=False) for _ in range(count)]


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_answers_are_right(split: str) -> None:
    source = GraphProblems(TASK, split)  # type: ignore[arg-type]
    for i in range(40):
        problem = source[i]
        assert int(problem.answer) == value(problem.question)
        assert problem.level == str(len(ancestors(problem.question, statements(problem.question)[2])))
        assert (problem.source, problem.id) == ("graph", f"graph/{split}/0/{i}")
    assert isinstance(source, ProblemSource)
    assert is_endless(source)


def test_problems_have_the_size_that_was_asked_for() -> None:
    task = GraphTask(modulus=5, given=4, depth=2, width=3, min_steps=2, max_steps=3)
    problems = draw(task, 200)
    assert {p.steps for p in problems} == {2, 3}
    for problem in problems:
        assert len(problem.formulas) == 6
        assert len(problem.definitions) == 10
        assert all(0 <= v < 5 for v in problem.values().values())
        assert all(left != right for left, _, right in problem.formulas.values())


def test_the_largest_problem_has_all_names() -> None:
    (problem,) = draw(GraphTask(given=2, depth=2, width=5, max_steps=4), 1)
    assert set(problem.definitions) == set(ITEMS)


def test_asides_follow_each_step_and_change_nothing_else() -> None:
    with_asides = dataclasses.replace(TASK, asides=2, needless=0.0, filler=False)
    for problem in draw(with_asides, 30):
        text = with_asides.solution(problem, random.Random(1), flaws=0).text
        _, *lines, last = text.splitlines()
        groups = [lines[i : i + 3] for i in range(0, len(lines), 3)]
        assert len(groups) == problem.steps
        assert all(STEP.search(step) for step, *_ in groups)
        for aside in (aside for _, *asides in groups for aside in asides):
            opener, *names = aside.removesuffix(".").split()
            assert opener in OPENERS
            assert len(names) == 4
            assert {*names} <= {*ITEMS}
        assert gold_answer(last) == str(value(problem.question))


def test_a_flawless_solution_computes_what_is_needed_and_nothing_else() -> None:
    orders = set()
    for problem in draw(TASK, 100):
        text = TASK.solution(problem, random.Random(1), flaws=0).text
        assert gold_answer(text) == str(value(problem.question))
        listed = re.findall(r"[a-z]+", text.splitlines()[0].removeprefix("Needed"))
        steps = STEP.findall(text)
        assert [step[0] for step in steps] == listed[::-1]
        assert set(listed) == ancestors(problem.question, problem.asked)
        seen = {name for name, told in statements(problem.question)[1].items() if told.isdigit()}
        for name, left, sign, right, of_left, left_value, of_right, right_value, again, result in steps:
            assert (of_left, of_right, again) == (left, right, name)
            assert f"{left} {sign} {right}" == statements(problem.question)[1][name]
            assert {left, right} <= seen, "operands are computed before"
            seen.add(name)
            assert [int(n) for n in (left_value, right_value, result)] == [
                value(problem.question, n) for n in (left, right, name)
            ]
        others = [TASK.solution(problem, random.Random(seed), flaws=0).text for seed in range(8)]
        orders.add(len({tuple(re.findall(r"[a-z]+", other.splitlines()[0])) for other in others}))
    assert max(orders) > 1, "the order is free where the graph leaves it free"


def test_flaws_come_at_their_rates_and_sums_are_right() -> None:
    task = GraphTask(wrong_operator=0.2, wrong_operand=0.1, needless=0.3)
    counts = dict.fromkeys(("steps", "operator", "operand", "needless"), 0)
    rng = random.Random(3)
    for problem in draw(task, 500):
        told = statements(problem.question)[1]
        stated = {name: int(text) for name, text in told.items() if text.isdigit()}
        for name, left, sign, right, _, left_value, _, right_value, _, result in STEP.findall(task.solution(problem, rng).text):
            assert (int(left_value), int(right_value)) == (stated[left], stated[right])
            assert int(result) == eval(left_value + sign + right_value) % 5
            stated[name] = int(result)
            true_left, true_sign, true_right = told[name].split()
            counts["steps"] += 1
            counts["operator"] += sign != true_sign
            counts["operand"] += (left, right) != (true_left, true_right)
            counts["needless"] += name not in problem.needed
            assert left == true_left or right == true_right, "one operand is wrong, not both"
    for flaw, rate in (("operator", 0.2), ("operand", 0.1)):
        assert counts[flaw] / counts["steps"] == pytest.approx(rate, abs=4 * (rate * (1 - rate) / counts["steps"]) ** 0.5)
    assert 0.05 < counts["needless"] / counts["steps"] < 0.25


def test_misconceptions_are_the_same_in_every_problem_and_as_frequent_as_was_asked_for() -> None:
    task = GraphTask(wrong_operator=0.3, misconceptions=0.5, wrong_operand=0.0, needless=0.0)
    written: dict[tuple[str, str, str], list[str]] = {}
    for problem in draw(task, 4000):
        solution = task.solution(problem, random.Random(problem.question))
        for name, left, sign, *_ in STEP.findall(solution.text):
            written.setdefault((name, left, problem.formulas[name].operator), []).append(sign)
    steps = sum(map(len, written.values()))
    wrong = sum(sign != triple[2] for triple, signs in written.items() for sign in signs)
    assert wrong / steps == pytest.approx(0.3, abs=0.05), "which triples occur adds to the noise of the draws"
    seen_often = {triple: signs for triple, signs in written.items() if len(signs) >= 12}
    assert len(seen_often) > 300
    mistaken = [{*signs} - {triple[2]} for triple, signs in seen_often.items()]
    assert {len(others) for others in mistaken} == {0, 1}, "one wrong operator for a triple, or none"
    assert sum(map(len, mistaken)) / len(mistaken) == pytest.approx(0.5, abs=0.1)


def test_a_flawless_solution_has_no_misconceptions() -> None:
    task = GraphTask(misconceptions=0.5)
    for problem in draw(task, 50):
        assert gold_answer(task.solution(problem, random.Random(1), flaws=0).text) == str(value(problem.question))


def test_causal_spans_are_operands_operators_and_numbers_of_needed_steps() -> None:
    rng = random.Random(4)
    for problem in draw(TASK, 100):
        solution = TASK.solution(problem, rng)
        steps = [m for m in STEP.finditer(solution.text) if m[1] in problem.needed]
        expected = [m.span(group) for m in steps for group in (2, 3, 4, 6, 8, 10)]
        assert list(solution.causal_spans[:-1]) == expected
        start, end = solution.causal_spans[-1]
        assert solution.text[start - 1 : end + 1] == f"{{{gold_answer(solution.text)}}}"


def test_the_default_problems_are_the_ones_that_the_shipped_policy_learned_from() -> None:
    digest = hashlib.sha256()
    for split in ("train", "held_out"):
        source = GraphProblems(GraphTask(), split)  # type: ignore[arg-type]
        for i in range(20):
            digest.update(repr([source[i].question, source[i].answer, source[i].solution]).encode())
    assert digest.hexdigest() == "bed36987ad00dd53c75840f7699e2b11e4ca10f47f1b0724b7d6f14889b674ae"


def test_a_task_too_small_for_both_splits_is_an_error_not_a_hang() -> None:
    task = GraphTask(given=2, depth=1, width=1, min_steps=2, max_steps=2)
    with pytest.raises(ValueError, match=r"data\.graph\.depth=1, width=1.*left for training; raise one of them"):
        task.problem(random.Random(0), held_out=False)


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        ({"modulus": 6}, ["data.graph.modulus", "prime", "got 6"]),
        ({"given": 1}, ["data.graph.given", ">= 2", "got 1"]),
        ({"depth": 0}, ["data.graph.depth", "got 0"]),
        ({"width": 0}, ["data.graph.width", "got 0"]),
        ({"width": 5}, ["data.graph.given=3", "width=5", "12"]),
        ({"min_steps": 2}, ["data.graph.min_steps", "depth=3", "got 2"]),
        ({"max_steps": 2}, ["data.graph.min_steps", "max_steps=2"]),
        ({"wrong_operator": 1.0}, ["data.graph.wrong_operator", "got 1.0"]),
        ({"misconceptions": 1.5}, ["data.graph.misconceptions", "got 1.5"]),
        ({"misconceptions": 0.1}, ["data.graph.wrong_operator=0.1", "misconceptions=0.1"]),
        ({"wrong_operand": -0.1}, ["data.graph.wrong_operand", "got -0.1"]),
        ({"needless": 2.0}, ["data.graph.needless", "got 2.0"]),
    ],
)
def test_bad_settings_name_their_key(arguments: dict[str, Any], keys: list[str]) -> None:
    with pytest.raises(ValueError, match="data") as caught:
        dataclasses.replace(TASK, **arguments)
    assert all(key in str(caught.value) for key in keys)
