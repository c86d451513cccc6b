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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_policy_of_the_package_reads_solutions_and_the_other_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the page's problems. There `graph_hints` is right in 78 % of its samples told a right solution, in 36 % told
    nothing; `graph` in 33 and 35 %. A difference over 32 problems has a standard error of about 0.07."""
    monkeypatch.setattr(measure, "PROBLEMS", 32)
    told, alone = (
        {name: measure.read(measure.SUBJECTS[name], measure.HINTS[hint]) for name in ("graph_hints", "graph")}
        for hint in ("a right solution", "nothing")
    )
    gained = {name: told[name].right[0] - alone[name].right[0] for name in told}
    assert gained["graph_hints"] > 0.25
    assert gained["graph"] < 0.15
    assert all(0.2 < read.right[0] < 0.55 for read in alone.values()), "both answer alike without a hint"
