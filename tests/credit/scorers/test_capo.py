"""CAPO against its definition, written out by hand and with numpy; what becomes of rows without judgement."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import fit, make_module, tiny_policy
from support.judge_server import judge_server, wrong
from support.toy import padded, rollouts_of

from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import SignedGate
from oar_lightning.credit.judges import EndpointJudge, Judge, Solution, SpanJudge, Verdict
from oar_lightning.credit.scorers import Capo
from oar_lightning.credit.scorers.capo import group_normalized
from oar_lightning.credit.segments import FixedLength, Sentences
from oar_lightning.data.task_credit import TaskErrors
from oar_lightning.objective.advantage import AdvantageConfig, group_advantages
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.types import MathProblem, Rollouts

SEQUENCES = [
    {"before": [3, 4], "reasoning": [8, 9, 10, 11], "conclude": [12], "answer": [13], "tail": [1]},
    {"before": [3, 4], "reasoning": [15, 16], "answer": [22]},
    {"before": [5], "reasoning": [25, 26, 27], "answer": [22]},
    {"before": [5], "tail": [25, 26]},
]
TEXTS = ("abXd-5.", "Xb5", "abc6", "aX")
PROBLEMS = tuple(MathProblem(q, "5") for q in "ppqq")
REWARDS = torch.tensor([1.0, 0.0, 1.0, 1.0])


def where_x(problem: MathProblem, text: str) -> list[tuple[int, int]]:
    return [(i, i + 1) for i, c in enumerate(text) if c == "X"]


def given(**changes: Any) -> Rollouts:
    spans = tuple(tuple((i, i + 1) for i in range(len(text))) for text in TEXTS)
    known = {"completions": TEXTS, "token_spans": spans, "problems": PROBLEMS, "rewards": REWARDS, "group_size": 2}
    return rollouts_of(SEQUENCES, advantages=torch.tensor([1.0, -1.0, 0.0, 0.0]), **known | changes)


def numbers(scores: torch.Tensor, rollouts: Rollouts) -> list[list[float]]:
    return [scores[i, m].tolist() for i, m in enumerate(rollouts.response_mask)]


def by_numpy(rewards: list[list[float]]) -> list[list[float]]:
    """Of one group."""
    flat = np.concatenate(rewards)
    return [[(r - flat.mean()) / (flat.std() + 1e-4) for r in row] for row in rewards]


STEPS = FixedLength(2)
BY_X = SpanJudge(where_x)


@pytest.mark.parametrize(("outcome", "penalty"), [(2.0, 1.0), (1.0, 3.0), (2.0, 0.0)])
def test_the_definition(outcome: float, penalty: float) -> None:
    """Steps of two tokens; the second of the first text is wrong, as is the whole of the last, which has no answer."""
    rollouts = given()
    scorer = Capo(BY_X, STEPS, outcome, penalty)
    found = numbers(scorer(None, rollouts), rollouts)
    c, p = outcome, penalty
    expected = by_numpy([[c, c, c - p, c - p, c, c, c], [-p, -p, 0]]) + by_numpy([[c] * 4, [c - p] * 2])
    for row, of_row in zip(found, expected, strict=True):
        assert row == pytest.approx(of_row, rel=1e-6, abs=1e-9)
    assert scorer.metrics == {"forward_equivalents": 0.0, "unjudged_frac": 0.0, "wrong_frac": 0.75}


def test_golden_values() -> None:
    """One right and one wrong completion of two tokens; the second token of the wrong one lies in a wrong step. Token rewards
    2, 2, 0, -1 have the mean 3/4 and the variance 27/16."""
    sequences = [{"before": [3], "reasoning": [8, 9]}, {"before": [3], "reasoning": [8, 9]}]
    spans = (((0, 1), (1, 2)),) * 2
    rollouts = rollouts_of(
        sequences, rewards=torch.tensor([1.0, 0.0]), completions=("ab", "aX"), token_spans=spans, problems=PROBLEMS[:2]
    )
    found = numbers(Capo(BY_X, FixedLength(1))(None, rollouts), rollouts)
    std = 3 * 3**0.5 / 4
    assert found[0] == pytest.approx([1.25 / (std + 1e-4)] * 2, rel=1e-6)
    assert found[1] == pytest.approx([-0.75 / (std + 1e-4), -1.75 / (std + 1e-4)], rel=1e-6)


@pytest.mark.parametrize("lengths", [(3, 3, 3), (1, 3, 8)])
def test_without_wrong_steps_it_is_a_normalisation_of_rewards(lengths: tuple[int, ...]) -> None:
    """Constant in a row. With equal lengths it is the group's, up to the estimate of the std; else lengths weigh."""
    sequences = [{"before": [3], "reasoning": [9] * (n - 1), "answer": [8]} for n in lengths]
    spans = tuple(tuple((i, i + 1) for i in range(n)) for n in lengths)
    rewards = torch.tensor([1.0, 0.0, 0.5])
    rollouts = rollouts_of(
        sequences, rewards=rewards, completions=tuple("a" * n for n in lengths), token_spans=spans, problems=PROBLEMS[:3]
    )
    found = numbers(Capo(BY_X, STEPS, outcome=2.0)(None, rollouts), rollouts)
    expected = by_numpy([[2 * r] * n for r, n in zip(rewards.tolist(), lengths, strict=True)])
    for row, of_row in zip(found, expected, strict=True):
        assert row == pytest.approx(of_row, rel=1e-6)
        assert len(set(row)) == 1
    grpo = group_advantages(2 * rewards[:, None].double(), torch.ones(1).double(), 3, AdvantageConfig())
    ratios = [row[0] / a for row, a in zip(found, grpo.tolist(), strict=True) if a]
    by_estimate = (3 / 2) ** 0.5
    assert (ratios == pytest.approx([by_estimate] * 2, rel=1e-3)) == (len(set(lengths)) == 1)


@pytest.mark.parametrize(("penalty", "sign"), [(0.5, 1), (5.0, -1)])
def test_a_wrong_step_of_a_right_completion(penalty: float, sign: int) -> None:
    """Its advantage has either sign, by the factors."""
    rollouts = given()
    scores = Capo(BY_X, STEPS, 2.0, penalty)(None, rollouts)
    assert scores[0, rollouts.reasoning_mask[0]].sign().tolist()[2:] == [sign] * 2


def test_equal_token_rewards_teach_nothing() -> None:
    """Not even by rounding: groups without a signal take no part in the update."""
    rollouts = given(completions=("abcd-5.", "ab5", "abc6", "ab"), rewards=torch.full((4,), 0.1))
    assert not Capo(BY_X, STEPS, 0.7)(None, rollouts).any()


def test_rewards_that_are_not_finite_are_left_out() -> None:
    rewards, mask = torch.tensor([[1.0, 0.0, float("nan")]] * 2).double(), torch.ones(2, 3, dtype=torch.bool)
    assert group_normalized(rewards, mask, 2).tolist() == [pytest.approx([1 / 1.0002, -1 / 1.0002, 0], rel=1e-6)] * 2
    assert group_normalized(rewards[:, 2:], mask[:, 2:], 2).tolist() == [[0.0], [0.0]]


def test_the_gate_takes_the_scores_and_groups_with_equal_rewards_are_judged() -> None:
    rollouts = given()
    credit = assign_credit(None, rollouts, Capo(BY_X, STEPS), SignedGate())
    assert torch.equal(credit.advantages, Capo(BY_X, STEPS)(None, rollouts))
    assert rollouts.advantages is not None
    assert not rollouts.advantages[2:].any()
    assert credit.advantages[2:].any()


class Recorder(Judge):
    """Every step is wrong, but for texts that it does not judge."""

    def __init__(self, without: Sequence[str] = ()) -> None:
        super().__init__()
        self.without = without
        self.asked: list[Solution] = []

    def __call__(self, solutions: Sequence[Solution]) -> list[Verdict]:
        self.asked += solutions
        return [None if one.text in self.without else (0.5,) * len(one.steps) for one in solutions]


def test_steps_are_those_of_the_text_and_equal_completions_are_judged_once() -> None:
    same = given(completions=("ab\ncd5.", "ab5", "ab\n6", "ab\n6"), problems=(PROBLEMS[0],) * 4)
    same = rollouts_of(
        [SEQUENCES[0], SEQUENCES[1], SEQUENCES[2], SEQUENCES[2]],
        **{f: getattr(same, f) for f in ("completions", "problems", "rewards", "group_size", "advantages")},
        token_spans=tuple(tuple((i, i + 1) for i in range(n)) for n in (7, 3, 4, 4)),
    )
    judge = Recorder()
    Capo(judge, Sentences())(None, same)
    assert [(one.text, one.steps) for one in judge.asked] == [
        ("ab\ncd5.", ((0, 3), (3, 4))),
        ("ab5", ((0, 2),)),
        ("ab\n6", ((0, 3),)),
    ]


@pytest.mark.parametrize(
    ("text", "spans", "asked"),
    [
        ("aX", ((0, 1), (1, 2)), True),
        ("", ((0, 0), (0, 0)), False),
        (" \n", ((0, 1), (1, 2)), False),
        ("a\ufffd", ((0, 1), (1, 2)), True),
    ],
)
def test_without_a_judgement_the_outcome_alone_counts(text: str, spans: tuple[tuple[int, int], ...], asked: bool) -> None:
    rollouts = given()
    rollouts = dataclasses.replace(rollouts, completions=(*TEXTS[:3], text), token_spans=(*rollouts.token_spans[:3], spans))
    judge = Recorder(without=(text,))
    scorer = Capo(judge, STEPS)
    found = numbers(scorer(None, rollouts), rollouts)
    assert [one.text for one in judge.asked] == [*TEXTS[:3], *[text] * asked]
    assert scorer.metrics == {"forward_equivalents": 0.0, "unjudged_frac": 0.25, "wrong_frac": 0.75}
    for row, expected in zip(found[2:], by_numpy([[1.5, 1.5, 1.5, 2.0], [2.0, 2.0]]), strict=True):
        assert row == pytest.approx(expected, rel=1e-6)


def test_padding_does_not_matter() -> None:
    rollouts = given()
    expected = Capo(BY_X, STEPS)(None, rollouts)
    assert torch.equal(Capo(BY_X, STEPS)(None, padded(rollouts, 2, 3))[:, 2:-3], expected)


def test_the_built_in_task_from_rollout_to_update() -> None:
    """The exact judge, and one behind an endpoint that finds nothing wrong, in one step of training each."""
    update = UpdatePlan(problems=2, group_size=4)
    exact = Capo(SpanJudge(TaskErrors()), Sentences())
    row = fit(make_module(tiny_policy(), exact, gate=SignedGate(), update=update), 1).rows[1]
    assert 0 <= row["credit/unjudged_frac"] <= 1
    assert "credit/judge_calls" not in row
    pytest.importorskip("openai", reason="the extra judge is not installed")
    with judge_server(wrong()) as server:
        asked = Capo(EndpointJudge(server.url, "m", timeout=20.0), Sentences())
        row = fit(make_module(tiny_policy(), asked, gate=SignedGate(), update=update), 1).rows[1]
    assert row["credit/judge_calls"] == len(server.requests) > 0
    assert row["credit/judge_tokens"] == 100 * len(server.requests)
    assert row["credit/wrong_frac"] == 0
    assert row["credit/judge_unreadable"] == row["credit/judge_failed"] == row["credit/judge_unpaid"] == 0
    assert row["time/judge_s"] > 0


def test_without_texts_it_says_so() -> None:
    with pytest.raises(ValueError, match="scorer=capo reads the text of completions"):
        Capo(BY_X, STEPS)(None, given(token_spans=()))
    with pytest.raises(ValueError, match=r"scorer\.penalty must be finite and >= 0, got -1"):
        Capo(BY_X, STEPS, penalty=-1.0)
    with pytest.raises(ValueError, match=r"scorer\.outcome must be .*> 0.*, got 0"):
        Capo(BY_X, STEPS, outcome=0.0)
