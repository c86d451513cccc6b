"""Problems over a dependency graph: against an independent reading of their text, renamed, shuffled, and garbled by hand."""

from __future__ import annotations

import itertools
import random

import pytest
from support.graph_reading import ancestors, statements, value

from oar_lightning.data.graph.problem import ITEMS, Formula, GraphProblem, read_question
from oar_lightning.data.graph.task import GraphTask


def draw(task: GraphTask, count: int, held_out: bool = False) -> list[GraphProblem]:
    rng = random.Random(0)
    return [task.problem(rng, held_out) for _ in range(count)]


PROBLEMS = draw(GraphTask(depth=3, min_steps=3, max_steps=5), 100)


def test_answers_and_needed_quantities_are_right() -> None:
    for problem in PROBLEMS:
        assert problem.answer == value(problem.question)
        assert problem.needed == ancestors(problem.question, problem.asked)
        assert problem.steps == len(problem.needed)
        assert problem.values() == {name: value(problem.question, name) for name in problem.definitions}


def test_what_is_stated_replaces_what_is_true() -> None:
    rng = random.Random(1)
    for problem in PROBLEMS:
        stated = {name: rng.randrange(5) for name in rng.sample(sorted(problem.formulas), 2)}
        assert problem.values(stated)[problem.asked] == value(problem.question, stated=stated)


def test_questions_are_read_back() -> None:
    for problem in PROBLEMS:
        read = read_question(problem.question)
        assert read == problem
        assert list(read.definitions) == list(problem.definitions) == list(statements(problem.question)[1])


@pytest.mark.parametrize(
    "question",
    [
        "",
        "Ann has 3 pens. Ann finds 4. How many pens are left?",
        "Modulo 7: pens=3. How many books are there?",
        "Modulo 1: pens=3. How many pens are there?",
        "Modulo 7: pens=3; pens=4. How many pens are there?",
        "Modulo 7: pens is pens + pens. How many pens are there?",
        "Modulo 7: pens is cups + nuts; cups is nuts + pens; nuts=1. How many pens are there?",
        "Modulo 7: pens is cups + nuts. How many pens are there?",
        "Modulo 7: pens is 3 + 4. How many pens are there?",
        "Modulo 7: nuts=1; pens is nuts / nuts. How many pens are there?",
        f"Modulo 7: pens={'9' * 5000}. How many pens are there?",
    ],
)
def test_other_questions_are_not_read(question: str) -> None:
    assert read_question(question) is None


def test_a_very_long_question_is_read() -> None:
    names = ["".join(chr(97 + int(d)) for d in str(i)) for i in range(3000)]
    told = "; ".join(["a=1", *(f"{name} is {before} + a" for before, name in itertools.pairwise(names))])
    problem = read_question(f"Modulo 7: {told}. How many {names[-1]} are there?")
    assert problem is not None
    assert (problem.answer, problem.steps) == (3000 % 7, 2999)


def changed(problem: GraphProblem, rng: random.Random) -> GraphProblem:
    """The same structure with other names, values, and orders of statements and operands."""
    names = dict(zip(problem.definitions, rng.sample(ITEMS, len(problem.definitions)), strict=True))
    items = [
        (names[name], rng.randrange(7) if isinstance(d, int) else Formula(names[d.right], d.operator, names[d.left]))
        for name, d in problem.definitions.items()
    ]
    return GraphProblem(problem.modulus, dict(rng.sample(items, len(items))), names[problem.asked])


def test_the_structure_is_free_of_names_values_and_orders() -> None:
    rng = random.Random(2)
    for problem in PROBLEMS:
        other = changed(problem, rng)
        assert other.question != problem.question
        assert other.structure == problem.structure
        assert other.held_out == problem.held_out


def test_the_structure_knows_operators_and_shape() -> None:
    def one(**definitions: int | tuple[str, str, str]) -> str:
        formulas = {name: d if isinstance(d, int) else Formula(*d) for name, d in definitions.items()}
        return GraphProblem(7, formulas, "pens").structure

    first = one(nuts=1, cups=2, keys=("nuts", "+", "cups"), pens=("keys", "*", "nuts"))
    assert first == one(nuts=1, cups=2, keys=("nuts", "+", "cups"), pens=("keys", "*", "cups"))
    assert first == one(nuts=1, cups=2, keys=("nuts", "+", "cups"), pens=("keys", "*", "cups"), eggs=("keys", "-", "cups"))
    others = [
        one(nuts=1, cups=2, keys=("nuts", "-", "cups"), pens=("keys", "*", "nuts")),
        one(nuts=1, cups=2, keys=("nuts", "*", "cups"), pens=("keys", "+", "nuts")),
        one(nuts=1, cups=2, lamps=3, keys=("nuts", "+", "cups"), pens=("keys", "*", "lamps")),  # nothing is used twice
        one(nuts=1, cups=2, pens=("nuts", "*", "cups")),
    ]
    assert len({first, *others}) == 5


def test_no_training_structure_is_held_out() -> None:
    train, held_out = (
        {p.structure for p in draw(GraphTask(depth=3, min_steps=3, max_steps=4), 80 if held else 300, held)}
        for held in (False, True)
    )
    assert len(train) > 200
    assert len(held_out) > 40
    assert not train & held_out


def test_a_product_may_state_its_operands_in_either_order() -> None:
    assert [Formula("a", "*", "b").other(o) for o in ("a", "b", "c")] == ["b", "a", "b"]
    assert [Formula("a", "-", "b").other(o) for o in ("a", "b", "c")] == ["b", "b", "b"]
