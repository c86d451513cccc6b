"""Entropy advantage and GTPO's weights against numbers by hand."""

from __future__ import annotations

import pytest
import torch
from support.toy import rollouts_of

from oar_lightning.credit.gates import DirectGate, SignedGate
from oar_lightning.credit.predictions import Predictions
from oar_lightning.credit.scorers.forward_free import EntropyAdvantage, Gtpo

SEQUENCES = [
    {"before": [1, 2], "reasoning": [3, 4], "answer": [5]},
    {"before": [1], "reasoning": [3, 4]},
    {"before": [1], "reasoning": [6, 7]},
]
ENTROPY = [[3.0, 1.0, 0.5], [1.0, 3.0], [2.0, 4.0]]


def given(monkeypatch, *advantages):
    rollouts = rollouts_of(SEQUENCES, advantages=torch.tensor(advantages))
    entropy = torch.zeros(rollouts.token_ids.shape)
    for row, values in enumerate(ENTROPY):
        entropy[row, rollouts.response_mask[row]] = torch.tensor(values)
    zeros = torch.zeros_like(entropy)
    for scorer in (EntropyAdvantage, Gtpo):
        monkeypatch.setattr(scorer, "predictions", lambda *_: Predictions(zeros, entropy, zeros, zeros, zeros))
    return rollouts


def values(tensor, rollouts, row):
    return tensor[row, rollouts.response_mask[row]].tolist()


def test_the_bonus_is_bounded_by_a_share_of_the_advantage(monkeypatch):
    rollouts = given(monkeypatch, 1.0, -4.0, 0.0)
    bonus = EntropyAdvantage(alpha=0.4, kappa=2.0)(None, rollouts)
    assert values(bonus, rollouts, 0) == pytest.approx([0.5, 0.4, 0.2])
    assert values(bonus, rollouts, 1) == pytest.approx([0.4, 1.2])
    assert values(bonus, rollouts, 2) == [0, 0]
    credit = SignedGate("add")(bonus, rollouts)
    assert (credit.advantages.sign() == rollouts.advantages.sign()[:, None] * rollouts.response_mask).all()


@pytest.mark.parametrize("kappa", [1.01, 2.0, 9.0])
@pytest.mark.parametrize("alpha", [0.01, 0.4, 50.0])
def test_no_sign_flips_with_kappa_above_one(monkeypatch, alpha, kappa):
    rollouts = given(monkeypatch, 0.3, -0.001, -7.0)
    bonus = EntropyAdvantage(alpha, kappa)(None, rollouts)
    assert (bonus[rollouts.response_mask] > 0).all()
    credit = SignedGate("add")(bonus, rollouts)
    assert (credit.advantages.sign() == rollouts.advantages.sign()[:, None] * rollouts.response_mask).all()


def test_gtpo_weights_by_hand(monkeypatch):
    """The two correct completions' entropies (3, 1) and (1, 3) at the first two places: 0.9 + 0.1 * 2 * 3/4 = 1.05."""
    rollouts = given(monkeypatch, 1.0, 1.0, -2.0)
    weights = Gtpo(0.1)(None, rollouts)
    assert values(weights, rollouts, 0) == pytest.approx([1.05, 0.95, 1.0])
    assert values(weights, rollouts, 1) == pytest.approx([0.95, 1.05])
    assert values(weights, rollouts, 2) == pytest.approx([1.0, 1.0])
    # the source's example has a1 = 1 and a2 = 0.1, which is 1.1 times a weight of share 1/11
    assert [1.1 * w for w in values(Gtpo(1 / 11)(None, rollouts), rollouts, 0)[:2]] == pytest.approx([1.15, 1.05])


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("advantages", [(1.0, 1.0, -2.0), (-1.0, -1.0, 2.0), (0.5, 1.0, 2.0)])
def test_gtpo_weights_of_one_sign_and_place_sum_to_their_number(monkeypatch, share, advantages):
    rollouts = given(monkeypatch, *advantages)
    weights = Gtpo(share)(None, rollouts)
    for sign in (1, -1):
        rows = [values(weights, rollouts, i) for i in range(3) if advantages[i] * sign > 0]
        for t in range(max(map(len, rows), default=0)):
            alive = [row[t] for row in rows if len(row) > t]
            assert sum(alive) == pytest.approx(len(alive), rel=1e-6)


def test_gtpo_inverts_the_entropies_of_wrong_completions(monkeypatch):
    rollouts = given(monkeypatch, -1.0, -1.0, 1.0)
    weights = Gtpo(0.1)(None, rollouts)
    assert values(weights, rollouts, 0) == pytest.approx([0.95, 1.05, 1.0])
    assert values(weights, rollouts, 1) == pytest.approx([1.05, 0.95])


def test_gtpo_tells_small_entropies_apart(monkeypatch):
    """1 / H of 1e-4 and 1e-2 nats is 1e4 and 1e2, 5050 on average."""
    monkeypatch.setattr(f"{__name__}.ENTROPY", [[1e-4, 1.0, 1.0], [1e-2, 1.0], [1.0, 1.0]])
    rollouts = given(monkeypatch, -1.0, -1.0, 1.0)
    weights = Gtpo(0.1)(None, rollouts)
    assert values(weights, rollouts, 0)[0] == pytest.approx(0.9 + 0.1 * 1e4 / 5050)
    assert values(weights, rollouts, 1)[0] == pytest.approx(0.9 + 0.1 * 1e2 / 5050)


def test_gtpo_without_a_share_is_grpo_bit_for_bit(monkeypatch):
    rollouts = given(monkeypatch, 0.3, -0.7, 0.1)
    credit = DirectGate()(Gtpo(0.0)(None, rollouts), rollouts)
    assert torch.equal(credit.advantages, rollouts.advantages[:, None] * rollouts.response_mask)


@pytest.mark.parametrize(
    ("make", "knobs", "message"),
    [
        (EntropyAdvantage, {"alpha": 0}, r"scorer\.alpha must be finite and > 0, got 0"),
        (EntropyAdvantage, {"kappa": -1}, r"scorer\.kappa must be finite and > 0, got -1"),
        (Gtpo, {"entropy_share": 2}, r"scorer\.entropy_share .* \[0, 1\], got 2"),
    ],
)
def test_bad_knobs_are_named(make, knobs, message):
    with pytest.raises(ValueError, match=message):
        make(**knobs)
