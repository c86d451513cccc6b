"""What policies answer with hints: the task that is asked is the variant's, and a problem without such a hint is left out."""

from __future__ import annotations

import random

import pytest
from hydra.utils import instantiate
from support.composing import composed
from support.study_scripts import load_script

from oar_lightning.data.chain.task import ChainTask

measure = load_script("hints")


@pytest.mark.usefixtures("hydra_conf")
def test_the_graph_problems_are_those_of_the_variant() -> None:
    assert instantiate(composed("+variant=graph").data.graph) == measure.SUBJECTS["graph"].task


def test_a_solution_that_does_not_exist_is_no_hint() -> None:
    faultless = ChainTask(noise=0.0)
    problem = faultless.problem(random.Random(0), held_out=False)
    right, answer = measure._solution(faultless, problem, False, random.Random(0))
    assert (answer, answer in right) == (str(problem.answer), True)
    assert measure._solution(faultless, problem, True, random.Random(0)) is None
