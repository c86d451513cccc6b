"""What the generated tasks share."""

from __future__ import annotations

import dataclasses
import re

import pytest

from oar_lightning.answers.span import gold_answer
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.data.generated import GeneratedProblems
from oar_lightning.data.graph.task import GraphTask


@pytest.mark.parametrize("task", [ChainTask(), GraphTask()])
def test_questions_of_training_tell_what_their_solutions_reach(task: ChainTask | GraphTask) -> None:
    """Right or wrong; the rest of a problem, and which problems there are, does not depend on it."""
    plain, told = GeneratedProblems(task), GeneratedProblems(dataclasses.replace(task, hints=0.5))
    hints, right = 0, 0
    for index in range(200):
        problem, other = plain[index], told[index]
        if other != problem:
            stated = gold_answer(problem.solution)
            question = f"{problem.question}\nThe answer is {stated}."
            assert other == dataclasses.replace(problem, question=question)
            hints, right = hints + 1, right + (stated == problem.answer)
    assert 70 < hints < 130
    assert 0 < right < hints


def test_problems_of_evaluation_tell_nothing() -> None:
    task = ChainTask(hints=1.0)
    assert all(ChainProblems(task, "held_out")[i] == ChainProblems(ChainTask(), "held_out")[i] for i in range(20))
    assert all(ChainProblems(task)[i] != ChainProblems(ChainTask())[i] for i in range(20))


@pytest.mark.parametrize("task", [ChainTask(hints=1.0), GraphTask(hints=1.0)])
def test_a_solution_as_a_hint_reaches_what_the_demonstration_reaches(task: ChainTask | GraphTask) -> None:
    """It is another text; where none of those drawn reaches it, the answer is told."""
    told = GeneratedProblems(dataclasses.replace(task, hint="solution"))
    others = 0
    for index in range(40):
        hint = told[index].question.partition("A solution:\n")[2]
        stated = gold_answer(told[index].solution)
        assert hint or told[index].question.endswith(f"\nThe answer is {stated}.")
        if hint:
            assert gold_answer(hint) == stated
            others += hint != told[index].solution
    assert others > 25


@pytest.mark.parametrize("task", [ChainTask(hints=1.0), GraphTask(hints=1.0)])
def test_feedback_calls_an_answer_wrong_that_the_demonstration_does_not_reach(task: ChainTask | GraphTask) -> None:
    told, pattern = (
        GeneratedProblems(dataclasses.replace(task, hint="feedback")),
        r"\nAn attempt ended in (\d+), which is wrong\.$",
    )
    found = [(told[i], match) for i in range(40) if (match := re.search(pattern, told[i].question))]
    assert len(found) > 30
    assert all(match[1] != gold_answer(problem.solution) for problem, match in found)
    assert any(match[1] == problem.answer for problem, match in found), "a right answer, too: solutions are as the policy's"
    never = ChainTask(hints=1.0, hint="feedback", noise=0.0)
    assert ChainProblems(never)[0] == ChainProblems(ChainTask(noise=0.0))[0], "nothing is wrong: nothing to tell"


def test_any_hint_is_each_of_them_now_and_then() -> None:
    told = ChainProblems(ChainTask(hints=1.0, hint="any"))
    kinds = (r"\nThe answer is \d", r"\nA solution:", r"\nAn attempt ended in")
    counts = [sum(bool(re.search(kind, told[i].question)) for i in range(45)) for kind in kinds]
    assert sum(counts) == 45
    assert all(5 < count < 25 for count in counts)
