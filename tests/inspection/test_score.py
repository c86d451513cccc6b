"""Scores of given texts in one call: those of the scorer and the gate themselves; and the page in a notebook."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
import torch
from support.fixtures import built_in_policy

from oar_lightning import BilevelGate, Format, MathProblem, PretrainedPolicy, Rewards, heatmap, score
from oar_lightning.credit.gates import ContrastGate, Gate, SignedGate
from oar_lightning.credit.gates.bilevel import gate_weights
from oar_lightning.credit.scorers import Scorer
from oar_lightning.credit.scorers.forward_free import Otb
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.inspection.completion_scores import ScoreSummary
from oar_lightning.types import Rollouts

PROBLEM = ChainProblems(ChainTask(noise=0.0))[0]
WRONG = PROBLEM.solution.replace("\\boxed{" + PROBLEM.answer, "\\boxed{77")


def by_place(model: Any, rollouts: Rollouts) -> torch.Tensor:
    """A plain function as a scorer."""
    return rollouts.reasoning_mask.cumsum(1) * rollouts.reasoning_mask.float()


def test_a_function_scores_texts_in_their_order() -> None:
    gate = BilevelGate(tau=0.7)
    texts = [PROBLEM.solution, WRONG, "no answer"]
    for policy in (built_in_policy(), PretrainedPolicy("chain"), "chain"):
        scored = score(policy, PROBLEM, texts, by_place, gate, batch=2)
        assert [one.recorded.text for one in scored] == texts
        assert [one.verdict for one in scored] == ["correct", "incorrect", "incorrect"]
        tokens = scored[0].shown.tokens
        assert "".join(token.text for token in tokens) == PROBLEM.solution
        scores = torch.tensor([[token.score for token in tokens if token.region.name == "REASONING"]])
        assert scores[0].tolist() == [*range(1, scores.shape[1] + 1)]
        weights = gate_weights(scores, torch.ones_like(scores, dtype=torch.bool), gate)
        found = [token.weight for token in tokens if token.region.name == "REASONING"]
        assert found == pytest.approx(weights[0].tolist(), rel=1e-5)
        assert {token.weight for token in scored[2].shown.tokens} == {1.0}, "without an answer nobody gets more"


def test_without_a_gold_answer_there_is_credit_and_no_verdict() -> None:
    (one,) = score(built_in_policy(), MathProblem(PROBLEM.question, ""), [PROBLEM.solution])
    assert one.verdict is one.advantage is None
    assert max(token.weight for token in one.shown.tokens) > 1, "OAR-G"


@pytest.mark.parametrize(
    ("texts", "options", "expected"),
    [
        ([], {}, "a list of at least one text, got \\[\\]"),
        ("text", {}, "a list of at least one text, got 'text'"),
        (["fine", "long " * 3000], {}, "some cannot be scored: .*rows of more than 2048 tokens"),
        (["fine"], {"scorer": 3}, "scorer is a int, not a function"),
        (["fine"], {"batch": 0}, "batch must be >= 1"),
        (["fine"], {"scorer": Otb()}, "scores with a sign, which BilevelGate cannot read; use gate=signed"),
        (["fine"], {"rewards": Rewards({"format": Format()})}, "reward.terms must include accuracy"),
    ],
)
def test_what_cannot_be_scored_is_named(texts: Any, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        score(built_in_policy(), PROBLEM, texts, **options)


def test_a_question_is_no_problem() -> None:
    with pytest.raises(TypeError, match=r"problem must be a MathProblem, .*got 'What is 2\+2\?'"):
        score(built_in_policy(), "What is 2+2?", ["4"])  # type: ignore[arg-type]


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(tmp_path: Any) -> None:
    problem = MathProblem('<script>alert("1")</script>?', PROBLEM.answer)
    page = heatmap(score(built_in_policy(), problem, [PROBLEM.solution, WRONG], by_place), "Title & more", height=300)
    (inner,) = re.findall(r' srcdoc="([^"]*)"></iframe>$', page._repr_html_())
    assert html.unescape(inner) == page.page
    assert "<script>alert" not in page.page
    assert "Title &amp; more" in page.page
    assert "height:300px" in page._repr_html_()
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page.page


def test_a_page_is_of_one_problem() -> None:
    with pytest.raises(ValueError, match="one problem, got those of 0"):
        heatmap([])
    several = [score(built_in_policy(), MathProblem(q, "1"), ["1"], by_place)[0] for q in "ab"]
    with pytest.raises(ValueError, match="one problem, got those of 2"):
        heatmap(several)


class SignedPlaces(Scorer):
    signed, covers = True, "response"

    def __call__(self, model: Any, rollouts: Rollouts) -> torch.Tensor:
        return by_place(model, rollouts)


@pytest.mark.parametrize("gate", [SignedGate(), ContrastGate()])
def test_without_an_advantage_there_is_no_ratio_to_it(gate: Gate) -> None:
    """Gates that add to advantages state their ratio as weights: of a problem without a gold answer there is none."""
    known = score(built_in_policy(), PROBLEM, [PROBLEM.solution, WRONG], SignedPlaces(), gate)
    unknown = score(built_in_policy(), MathProblem(PROBLEM.question, ""), [PROBLEM.solution, WRONG], SignedPlaces(), gate)
    assert all(weight is not None for one in known for weight in one.to_json()["weights"])
    assert {weight for one in unknown for weight in one.to_json()["weights"]} == {None}
    summary = ScoreSummary()
    for one in unknown:
        summary.add(one)
    assert not any("weights" in name for name, _ in summary.rows())
    assert "reward none\n&middot; advantage none" in heatmap(unknown).page
