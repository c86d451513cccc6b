"""The study of the OAR paper's open questions: its command and its tables, by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from support.composing import checked
from support.study_scripts import load_script
from support.toy import rollouts_of

from oar_lightning.credit.scorers import as_scorer
from oar_lightning.data.chain.task import ChainTask
from oar_lightning.types import Rollouts

measure = load_script("lab_questions")
unmarked = load_script("lab_questions", "unmarked")


@pytest.mark.usefixtures("hydra_conf")
def test_the_lab_has_an_estimator_of_each_row() -> None:
    for overrides in measure.VARIANTS.values():
        composed = checked("task=lab", *overrides, *measure.SETTINGS)
        assert {*measure.FILL_ROWS, *measure.PROXY_ROWS} <= {*composed.lab.estimators}
        fills = [composed.lab.estimators[f"oar_p_{fill}"].scorer.fill for fill in measure.FILLS]
        assert fills == list(measure.FILLS)


@pytest.mark.usefixtures("hydra_conf")
def test_labs_of_forms_and_of_unmarked_answers_have_an_estimator_of_each_row() -> None:
    composed = checked("task=lab", *measure.LABS["omit_last"])
    assert {*measure.FORM_ROWS} <= {*composed.lab.estimators}
    assert (composed.data.chain.restate, composed.data.chain.asides_last) == (False, True)
    composed = checked("task=lab", *measure.LABS["chain_unmarked"])
    assert {*measure.MARKED_ROWS, *measure.UNMARKED_ROWS, *measure.CONTROL_ROWS} <= {*composed.lab.estimators}
    assert composed.lab.estimators.gold_unmarked.scorer.inner.segments.threshold == 0.98


@pytest.mark.parametrize("name", measure.FORMS)
def test_a_form_is_read_from_the_text(name: str) -> None:
    words = dict(override.split("=") for override in measure.FORMS[name] if "data.chain" in override)
    restate, last = (words[f"data.chain.{key}"] == "true" for key in ("restate", "asides_last"))
    task = ChainTask(min_steps=3, max_steps=3, asides=1, restate=restate, asides_last=last)
    rng = random.Random(0)
    texts = [task.solution(task.problem(rng, False), rng).text for _ in range(20)]
    assert {measure.form(text) for text in texts} == {name}
    assert measure.form(texts[0].splitlines()[0]) == "other"


SEQUENCES = [
    {"before": [3, 4], "reasoning": [5, 6, 7], "conclude": [8], "answer": [9, 10], "tail": [2]},
    {"before": [4], "reasoning": [11, 12], "answer": [13], "tail": [2]},
]


def test_a_scorer_may_not_be_told_the_answer() -> None:
    """The last tokens stand for the answer; the answer itself is reasoning like all before."""
    seen: list[Rollouts] = []

    def inner(model: Any, rollouts: Rollouts) -> torch.Tensor:
        seen.append(rollouts)
        return rollouts.reasoning_mask.float()

    scores = unmarked.Unmarked(as_scorer(inner), last=2)(None, rollouts_of(SEQUENCES))
    assert seen[0].answers == (None, None)
    assert seen[0].answer_mask.long().tolist() == [[0, 0, 0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 0, 0, 0]]
    assert scores.tolist() == [[0, 0, 1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0, 0]]


def test_hidden_states_by_plain_passes(golden_model: Any) -> None:
    rollouts = rollouts_of(SEQUENCES)
    scores = unmarked.OarPHidden(fill_token_id=1)(golden_model, rollouts)
    for row, s in enumerate(SEQUENCES):
        ids = [*s["before"], *s["reasoning"], *s.get("conclude", []), *s["answer"]]
        reads = slice(len(ids) - len(s["answer"]) - 1, len(ids) - 1)

        def states(tokens: list[int], reads: slice = reads) -> torch.Tensor:
            return golden_model(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0, reads]

        with torch.no_grad():
            for j in range(len(s["reasoning"])):
                changed = list(ids)
                changed[len(s["before"]) + j] = 1
                away = 1 - torch.cosine_similarity(states(ids), states(changed), dim=-1).mean()
                assert scores[row, 2 + j] == pytest.approx(float(away), rel=1e-6)
                assert away > 1e-5


def test_a_column_may_hold_right_completions_or_wrong_ones() -> None:
    values = {"oar_g": [0.2, 0.4, None, 0.6, 1.0], "random": [None, None, None, None, math.nan]}
    results = {
        "completions": [{"problem": p, "correct": c} for p, c in [(0, True), (1, True), (1, True), (3, True), (2, False)]],
        "measures": {"monte_carlo.auroc": {"values": values}},
    }
    columns = [("all", "auroc", None), ("right", "auroc", True), ("wrong", "auroc", False)]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in measure.table(results, [*values], columns).splitlines()
    ]
    assert rows[0] == ["estimator", "all", "right", "wrong"]
    name, everything, right, wrong = rows[2]
    assert (name, everything[:4]) == ("oar_g", "0.55")
    half = 4.3027 * 0.2 / math.sqrt(3)  # Student's t of two degrees of freedom
    assert right == f"0.40 [{0.4 - half:.2f}, {0.4 + half:.2f}]"
    assert wrong.startswith("1.00")
    assert rows[3] == ["random", "-", "-", "-"]


def test_forms_are_compared_problem_by_problem() -> None:
    def lab(*rows: tuple[int, float | None]) -> dict[str, Any]:
        return {
            "completions": [{"problem": problem} for problem, _ in rows],
            "measures": {"monte_carlo.auroc": {"values": {"oar_p": [value for _, value in rows]}}},
        }

    one = lab((0, 0.9), (0, 0.7), (1, 0.5), (2, None), (3, 1.0), (4, 0.6))
    other = lab((0, 0.5), (0, None), (1, 0.6), (2, 0.4), (4, 0.5))
    half = 4.3027 * 0.2 / math.sqrt(3)
    expected = f"0.10 [{0.1 - half:.2f}, {0.1 + half:.2f}]"
    assert measure.switched(one, other, "auroc", "oar_p") == expected, "problems 0, 1 and 4: 0.3, -0.1 and 0.1"
