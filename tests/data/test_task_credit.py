"""The built-in tasks' knowledge, for problems of each of them and of none."""

from __future__ import annotations

import pytest

from oar_lightning.data.chain.credit import ChainCredit
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.data.generated import GeneratedProblems
from oar_lightning.data.graph.credit import GraphCredit
from oar_lightning.data.graph.task import GraphProblems, GraphTask
from oar_lightning.data.pieces import PieceCredit
from oar_lightning.data.task_credit import TaskCredit, step_ends
from oar_lightning.types import MathProblem


@pytest.mark.parametrize("which", ["causal", "results", "first_error"])
@pytest.mark.parametrize(
    ("problems", "credit"), [(ChainProblems(ChainTask()), ChainCredit), (GraphProblems(GraphTask()), GraphCredit)], ids=str
)
def test_each_problem_is_read_by_its_task(problems: GeneratedProblems, credit: type[PieceCredit], which: str) -> None:
    for i in range(10):
        problem = problems[i]
        found = TaskCredit(which)(problem, problem.solution)  # type: ignore[arg-type]
        assert found == credit(which)(problem, problem.solution)  # type: ignore[arg-type]
        assert found.spans
        assert len(step_ends(problem, problem.solution)) == problem.solution.count("=") // (1 if credit is ChainCredit else 3)


def test_other_problems_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scorer\.locate reads problems of data=chain or graph only.*use another scorer"):
        TaskCredit()(MathProblem("What is 2+2?", "four"), "2+2=4")
    assert step_ends(MathProblem("What is 2+2?", "four"), "So 2+2=4.") == [8]


def test_an_unknown_choice_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"scorer\.locate\.which must be one of causal, results, first_error, got 'all'"):
        TaskCredit("all")  # type: ignore[arg-type]
