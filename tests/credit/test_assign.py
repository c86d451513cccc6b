"""Which rows are scored, and in which region."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from support.toy import rollouts_of
from torch import Tensor

from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import BilevelGate, DirectGate, SelectGate
from oar_lightning.credit.scorers import Scorer
from oar_lightning.types import Rollouts

SEQUENCES = [{"before": [1] * (1 + i % 3), "reasoning": [3, 4, 5][: 1 + i % 3], "answer": [7]} for i in range(6)]


class Seen(Scorer):
    """Scores of 1 to n along each response; keeps what it was given."""

    covers = "response"

    def __call__(self, model: Any, rollouts: Rollouts) -> Tensor:
        self.seen = rollouts
        return rollouts.response_mask.cumsum(1) * rollouts.response_mask.double()


def given(*advantages: float) -> Rollouts:
    return dataclasses.replace(rollouts_of(SEQUENCES), group_size=2, advantages=torch.tensor(advantages, dtype=torch.float32))


def test_whole_groups_with_a_signal_are_scored_and_see_their_advantages() -> None:
    scorer = Seen()
    credit = assign_credit(None, given(0, 0, 1.0, 0, -1.0, 1.0), scorer, BilevelGate())
    assert scorer.seen.advantages.tolist() == [1, 0, -1, 1]
    assert scorer.seen.group_size == 2
    assert credit.importance[:2].eq(0).all()
    assert credit.weights[:2].eq(1).all()
    assert credit.importance[5].sum() == 1 + 2 + 3


def test_nothing_is_scored_without_a_signal_unless_somebody_reads_it() -> None:
    scorer, silent = Seen(), given(0, 0, 0, 0, 0, 0)
    assign_credit(None, silent, scorer, BilevelGate())
    assert not hasattr(scorer, "seen")
    assign_credit(None, silent, scorer, BilevelGate(), everything=True)
    assert len(scorer.seen) == 6
    other = Seen()
    assign_credit(None, silent, other, SelectGate())
    assert len(other.seen) == 6


def test_of_a_completion_that_could_not_be_scored_no_token_is_left_out() -> None:
    class Partly(Seen):
        def __call__(self, model: Any, rollouts: Rollouts) -> Tensor:
            scores = super().__call__(model, rollouts)
            self.left_out = rollouts.response_mask & (scores == 2)
            scores[0, rollouts.response_mask[0]] = float("nan")
            return scores

    rollouts = given(1, -1, 1, -1, 1, -1)
    credit = assign_credit(None, rollouts, Partly(), DirectGate(region="response"))
    assert credit.loss_mask is not None
    missing = rollouts.response_mask & ~credit.loss_mask
    assert missing.sum(1).tolist() == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("region", ["reasoning", "response"])
def test_scores_outside_the_gates_region_are_dropped(region: str) -> None:
    rollouts = given(1, -1, 1, -1, 1, -1)
    credit = assign_credit(None, rollouts, Seen(), DirectGate(region=region))
    inside = rollouts.reasoning_mask if region == "reasoning" else rollouts.response_mask
    assert torch.equal(credit.importance != 0, inside)
    assert credit.weights[~inside].eq(1).all()
