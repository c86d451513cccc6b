"""Gates that choose tokens against numpy, and their limits that are GRPO."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.toy import rollouts_of

from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import ClipGate, SelectGate
from oar_lightning.credit.scorers import as_scorer

SEQUENCES = [
    {"before": [1, 2], "reasoning": [3, 4, 5, 6], "answer": [7]},
    {"before": [1], "reasoning": [3, 4], "answer": [7], "tail": [8]},
    {"before": [1], "reasoning": [3], "answer": [7]},
]


@pytest.fixture
def rollouts():
    return dataclasses.replace(rollouts_of(SEQUENCES), advantages=torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64))


@pytest.fixture
def scores(rollouts):
    torch.manual_seed(0)
    return torch.rand(rollouts.token_ids.shape, dtype=torch.float64) * rollouts.response_mask


@pytest.mark.parametrize("share", [0.05, 0.2, 0.34, 0.5, 0.99])
@pytest.mark.parametrize("over", ["step", "row"])
def test_the_largest_are_kept(share, over, rollouts, scores):
    gate = SelectGate(share, over)
    credit = gate(scores, rollouts)
    mask = rollouts.response_mask
    rows = [mask] if over == "step" else [mask & (torch.arange(3)[:, None] == i) for i in range(3)]
    for part in rows:
        values = scores[part].numpy()
        kept = int(np.ceil(share * len(values)))
        assert set(scores[part & credit.loss_mask].tolist()) == set(np.sort(values)[-kept:].tolist())
    assert torch.equal(credit.advantages != 0, credit.loss_mask & (rollouts.advantages != 0)[:, None])


def test_with_all_tokens_as_denominator_nothing_leaves_the_loss(rollouts, scores):
    credit = SelectGate(0.2, denominator="all")(scores, rollouts)
    assert credit.loss_mask is None
    assert torch.equal(credit.advantages, SelectGate(0.2)(scores, rollouts).advantages)


@pytest.mark.parametrize("over", ["step", "row"])
@pytest.mark.parametrize("region", ["reasoning", "response"])
def test_a_share_of_one_is_grpo_bit_for_bit(over, region, rollouts, scores):
    credit = SelectGate(1.0, over, region=region)(scores, rollouts)
    assert torch.equal(credit.loss_mask, rollouts.response_mask)
    assert torch.equal(credit.advantages, rollouts.advantages[:, None] * rollouts.response_mask)


def test_ties_are_kept(rollouts, scores):
    assert torch.equal(SelectGate(0.2)(torch.ones_like(scores), rollouts).loss_mask, rollouts.response_mask)


@pytest.mark.parametrize("over", ["step", "row"])
def test_of_scores_that_are_0_but_for_few_these_alone_are_kept(over, rollouts):
    few = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64)
    for row in (0, 1):
        few[row, rollouts.response_mask[row].nonzero().flatten()[:1]] = 1.0 + row
    kept = SelectGate(0.5, over)(few, rollouts).loss_mask
    assert torch.equal(kept[:2], (few > 0)[:2])
    assert kept[2].sum() == (0 if over == "step" else rollouts.response_mask[2].sum())  # alone it has nothing that is larger
    assert torch.equal((ClipGate(0.5)(few, rollouts).clip_low[:2]).isfinite(), (few > 0)[:2])


@pytest.mark.parametrize("over", ["step", "row"])
def test_a_completion_that_could_not_be_scored_keeps_its_advantage_and_is_not_compared(over, rollouts, scores):
    unscored = scores.clone()
    unscored[0, rollouts.response_mask[0]] = torch.nan
    credit = SelectGate(0.5, over)(unscored, rollouts)
    assert torch.equal(credit.loss_mask[0], rollouts.response_mask[0])
    assert torch.equal(credit.advantages[0], rollouts.advantages[0] * rollouts.response_mask[0])
    others = torch.arange(1, len(scores))
    columns = rollouts.columns(others)
    alone = SelectGate(0.5, over)(scores[others][:, columns], dataclasses.replace(rollouts.select(others), group_size=1))
    assert torch.equal(credit.loss_mask[others][:, columns], alone.loss_mask)


def test_wider_bounds_for_large_scores_only(rollouts, scores):
    credit = ClipGate(0.4, clip_low=0.3, clip_high=0.6, kl_factor=0.1)(scores, rollouts)
    for row, mask in enumerate(rollouts.response_mask):
        large = (scores[row] >= np.sort(scores[row, mask])[-int(np.ceil(0.4 * int(mask.sum())))]) & mask
        assert torch.equal(credit.clip_low[row] == 0.3, large)
        assert torch.equal(credit.clip_high[row] == 0.6, large)
        assert torch.equal(credit.clip_low[row].isnan(), ~large)
        assert torch.equal(credit.kl_factor[row] == 0.1, large)
        assert credit.kl_factor[row, ~large].eq(1).all()
    assert torch.equal(credit.advantages, rollouts.advantages[:, None] * rollouts.response_mask)


@pytest.mark.parametrize(
    ("make", "knobs", "message"),
    [
        (SelectGate, {"share": 0}, r"gate\.share .* \(0, 1\], got 0"),
        (ClipGate, {"share": 2}, r"gate\.share .* \(0, 1\], got 2"),
        (ClipGate, {"clip_low": 1.5}, r"gate\.clip_low is 1 minus the ratio's lower bound and must be in \[0, 1\]"),
        (ClipGate, {"kl_factor": -1}, r"gate\.kl_factor must be finite and >= 0, got -1"),
    ],
)
def test_bad_knobs_are_named(make, knobs, message):
    with pytest.raises(ValueError, match=message):
        make(**knobs)


def test_all_tokens_are_kept_even_one_without_a_usable_score(rollouts, scores):
    scores[0, rollouts.response_mask[0].nonzero()[1]] = torch.nan
    credit = SelectGate(share=1.0, over="row")(scores, rollouts)
    assert torch.equal(credit.weights, torch.ones_like(credit.weights))


def test_groups_without_a_signal_are_scored_where_they_have_a_kl_term(rollouts, scores):
    """Their large tokens are the largest, and not all, as they were with scores of 0."""
    seen = []

    def scorer(model, part):
        seen.append(len(part))
        return scores[:, -part.token_ids.shape[1] :]

    credit = assign_credit(None, rollouts, as_scorer(scorer), ClipGate(0.2, kl_factor=0.1))
    assert seen == [3]
    assert ((credit.kl_factor == 0.1).sum(1) == torch.tensor([1, 1, 1])).all()
