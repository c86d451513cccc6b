"""The built-in tasks' knowledge, for problems of each of them and of none."""

from __future__ import annotations

import dataclasses

import pytest

from oar_lightning.data.chain.credit import ChainCredit
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.data.generated import GeneratedProblems
from oar_lightning.data.graph.credit import GraphCredit
from oar_lightning.data.graph.task import GraphProblems, GraphTask
from oar_lightning.data.pieces import PieceCredit
from oar_lightning.data.task_credit import TaskCredit, TaskErrors, step_ends
from oar_lightning.types import MathProblem


@pytest.mark.parametrize("which", ["causal", "results", "first_error"])
@pytest.mark.parametrize(
    ("problems", "credit"),
    [(ChainProblems(ChainTask()), ChainCredit), (GraphProblems(GraphTask()), GraphCredit)],
    ids=["chain", "graph"],
)
def test_each_problem_is_read_by_its_task(problems: GeneratedProblems, credit: type[PieceCredit], which: str) -> None:
    for i in range(10):
        problem = problems[i]
        found = TaskCredit(which)(problem, problem.solution)  # type: ignore[arg-type]
        assert found == credit(which)(problem, problem.solution)  # type: ignore[arg-type]
        assert found.spans
        assert len(step_ends(problem, problem.solution)) == problem.solution.count("=") // (1 if credit is ChainCredit else 3)


@pytest.mark.parametrize("gold", ["{}.0", "{}/1", " {} ", "0{}", "1e9", "x", "1/0", "9" * 99])
def test_gold_answers_in_other_forms_are_read_or_equal_none(gold: str) -> None:
    """They come from files, and an answer that is no number decides nothing."""
    problem = ChainProblems(ChainTask(noise=0.0))[0]
    written = dataclasses.replace(problem, answer=gold.format(problem.answer))
    found, right = (TaskCredit("first_error")(p, problem.solution) for p in (written, problem))
    assert (found == right) == ("{" in gold)


def test_other_problems_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scorer\.locate reads problems of data=chain or graph only.*use another scorer"):
        TaskCredit()(MathProblem("What is 2+2?", "four"), "2+2=4")
    with pytest.raises(ValueError, match=r"scorer/segments=task_steps reads problems of data=chain or graph only.*=sentences"):
        step_ends(MathProblem("What is 2+2?", "four"), "So 2+2=4.")


def test_an_unknown_choice_names_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"scorer\.locate\.which must be one of causal, results, first_error, right, wrong, got 'all'"
    ):
        TaskCredit("all")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "first", "everything"),
    [
        ("So 9-6=3.\nThen 3+6=9.\n\\boxed{9}", [], []),
        ("So 9-6=4.\nThen 4+6=10.\n\\boxed{10}", ["4"], ["4", "4", "10"]),
        ("So 9-6=3.\nThen 3+5=8.\n\\boxed{8}", ["5"], ["5", "8"]),
    ],
)
def test_errors_of_a_chain(text: str, first: list[str], everything: list[str]) -> None:
    problem = MathProblem("Ann has 9 apples. Ann drops 6. Ann wins 6. How many apples are left?", "9")
    for which, expected in (("first", first), ("all", everything)):
        found = TaskErrors(which)(problem, text)  # type: ignore[arg-type]
        assert found is not None
        assert [text[start:end] for start, end in found] == expected
        assert TaskErrors(which)(problem, "Nine, I think.") is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        ("So 9-6=3.\nThen 3+6=9.\n\\boxed{9}", ["3", "9"], []),
        ("So 9-6=3.\nThen 3+6=8.\n\\boxed{8}", ["3"], ["8"]),
        ("So 9-6=3.\nThen 3-6=0.\n\\boxed{0}", ["3"], ["-"]),
        ("So 9-6=2.\nThen 2+6=8.\n\\boxed{8}", [], ["2"]),
    ],
)
def test_right_decisions_end_where_a_chain_goes_wrong(text: str, right: list[str], wrong: list[str]) -> None:
    problem = MathProblem("Ann has 9 apples. Ann drops 6. Ann wins 6. How many apples are left?", "9")
    for which, expected in (("right", right), ("wrong", wrong)):
        found = TaskCredit(which)(problem, text)  # type: ignore[arg-type]
        assert [text[start:end] for start, end in found.spans] == expected
        assert found.exact


def test_where_it_went_wrong_may_be_unknown() -> None:
    problem = MathProblem("Ann has 9 apples. Ann drops 6. Ann wins 6. How many apples are left?", "9")
    assert TaskCredit("wrong")(problem, "So 9-6=3.\n\\boxed{3}") == ((), False)
    assert TaskCredit("right")(problem, "So 9-6=3.\n\\boxed{3}") == (((7, 8),), True)


FAULTLESS = GraphTask(wrong_operator=0.0, wrong_operand=0.0, needless=0.0)


@pytest.mark.parametrize("problems", [ChainProblems(ChainTask(noise=0.0)), GraphProblems(FAULTLESS)], ids=["chain", "graph"])
def test_demonstrations_without_noise_have_no_errors(problems: GeneratedProblems) -> None:
    assert [TaskErrors("all")(problems[i], problems[i].solution) for i in range(10)] == [()] * 10


@pytest.mark.parametrize("problems", [ChainProblems(ChainTask()), GraphProblems(GraphTask())], ids=["chain", "graph"])
def test_the_first_error_is_the_oracles(problems: GeneratedProblems) -> None:
    """Where a completion is wrong and has one."""
    compared = 0
    for i in range(40):
        problem = problems[i]
        found, known = TaskErrors()(problem, problem.solution), TaskCredit()(problem, problem.solution)
        if found and f"\\boxed{{{problem.answer}}}" not in problem.solution:
            assert found == known.spans
            compared += 1
    assert compared > 3


def test_errors_of_other_problems_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scorer\.judge\.locate reads problems of data=chain or graph only"):
        TaskErrors()(MathProblem("What is 2+2?", "four"), "2+2=4")
