"""What the generated tasks share."""

from __future__ import annotations

import dataclasses

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
