"""AR, STEER and UCAS against numpy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.toy import gpt2, rollouts_of

from oar_lightning.credit.gates import DirectGate
from oar_lightning.credit.scorers.forward_free import Probability, Steer, Ucas

SEQUENCES = [
    {"before": [3, 4], "reasoning": [8, 9, 10, 11, 12], "answer": [13]},
    {"before": [3, 4], "reasoning": [15, 16], "answer": [22], "tail": [1]},
    {"before": [5], "reasoning": [17, 18, 19], "answer": [2]},
    {"before": [5], "reasoning": [30, 7, 8, 9], "answer": [2]},
]
A = np.array([1.5, -0.5, 0.25, -2.0])


@pytest.fixture(scope="module")
def case():
    rollouts = rollouts_of(SEQUENCES, group_size=2, advantages=torch.tensor(A))
    model = gpt2()
    found = Probability().predictions(model, rollouts)
    return model, rollouts, {n: v.numpy() for n, v in found._asdict().items()}, rollouts.response_mask.numpy()


def test_ar_is_the_probability_mixed_with_one(case):
    model, rollouts, found, mask = case
    credit = DirectGate(strength=0.3)(Probability()(model, rollouts), rollouts)
    expected = 0.3 * np.exp(found["logprobs"]) + 0.7
    np.testing.assert_allclose(credit.weights.numpy()[mask], expected[mask], rtol=1e-6)
    mean = expected[mask].mean()
    assert mean == pytest.approx(1 - 0.3 * (1 - np.exp(found["logprobs"])[mask].mean()))


def test_steer_against_numpy(case):
    model, rollouts, found, mask = case
    p = np.exp(found["logprobs"])
    omega = np.abs(A[:, None] / p * p * (1 - p) * (found["logprobs"] + found["entropy"])) * mask
    expected = np.exp(np.log(0.8) / max(omega.max(), 0.02) * omega)
    weights = Steer(0.8)(model, rollouts).numpy()
    np.testing.assert_allclose(weights[mask], expected[mask], rtol=1e-6)
    assert weights[mask].min() == pytest.approx(0.8)
    assert weights[mask].max() <= 1
    assert np.array_equal(Steer(1.0)(model, rollouts).numpy(), mask.astype(float))


def test_steer_does_not_enlarge_small_changes(case):
    """The change is relative to the largest one, but to 0.02 at least."""
    model, rollouts, found, mask = case
    small = dataclasses.replace(rollouts, advantages=torch.tensor(A * 1e-4))
    omega = np.abs(1e-4 * A[:, None] * (1 - np.exp(found["logprobs"])) * (found["logprobs"] + found["entropy"]))[mask]
    assert omega.max() < 0.02
    np.testing.assert_allclose(Steer(0.8)(model, small).numpy()[mask], 0.8 ** (omega / 0.02), rtol=1e-6)


def test_steer_leaves_certain_tokens_alone(case, monkeypatch):
    """p -> 1: the weight goes to 1, whatever the advantage."""
    model, rollouts, _, mask = case
    found = Probability().predictions(model, rollouts)
    weights = []
    for rest in (1e-1, 1e-3, 0.0):  # 1 - p of every second token; its entropy is that of two choices
        p = torch.tensor(1 - rest, dtype=torch.float64)
        second = torch.arange(mask.shape[1]) % 2 == 0
        entropy = -torch.xlogy(p, p) - torch.xlogy(1 - p, 1 - p)
        sure = found._replace(
            logprobs=torch.where(second, p.log(), found.logprobs), entropy=torch.where(second, entropy, found.entropy)
        )
        monkeypatch.setattr(Steer, "predictions", lambda *_, sure=sure: sure)
        weights.append(Steer(0.8)(model, rollouts).numpy()[:, ::2][mask[:, ::2]])
    assert (weights[0] < weights[1]).all()
    assert (weights[1] < weights[2]).all()
    assert (weights[2] == 1).all()


@pytest.mark.parametrize("make", [Steer, Ucas])
def test_a_completion_without_predictions_leaves_other_groups_as_they_are(case, monkeypatch, make):
    model, rollouts, *_ = case
    clean = make().predictions(model, rollouts)
    row = int(clean.logits.masked_fill(~rollouts.response_mask, 0.0).abs().max(1).values.argmin())  # no extreme of the step
    broken = clean._replace(**{n: v.index_fill(0, torch.tensor([row]), torch.nan) for n, v in clean._asdict().items()})
    expected = make()(model, rollouts)
    monkeypatch.setattr(make, "predictions", lambda *_: broken)
    found = make()(model, rollouts)
    others = torch.arange(4) // 2 != row // 2
    assert found[row].isnan().any()
    torch.testing.assert_close(found[others], expected[others])


@pytest.mark.parametrize("certainty", ["mean", "sum"])
def test_ucas_against_numpy(case, certainty):
    model, rollouts, found, mask = case
    c = (found["certainty"] * mask).sum(1)
    c = c / mask.sum(1) if certainty == "mean" else c
    c = np.concatenate([(g - g.mean()) / (g.std(ddof=1) + 1e-6) for g in (c[:2], c[2:])])
    whole = np.where(A > 0, A * np.exp(-0.25 * c), A * np.exp(0.35 * c))[:, None]
    z = (found["logits"] - found["logits"][mask].min()) / np.ptp(found["logits"][mask])
    expected = whole - 0.05 * z
    expected = np.where(whole > 0, np.maximum(expected, 0), expected)
    actual = Ucas(certainty=certainty)(model, rollouts).numpy()
    np.testing.assert_allclose(actual[mask], expected[mask], rtol=1e-5)


def test_a_completion_without_a_token_does_not_move_its_siblings() -> None:
    """Of reasoning tokens one that ends without an answer has none, and so no certainty."""
    sequences = [
        {"before": [3, 4], "reasoning": [5, 6, 7], "answer": [8]},
        {"before": [3, 4], "reasoning": [9, 10], "answer": [8]},
        {"before": [3, 4], "tail": [11, 12]},
    ]
    advantages = torch.tensor([1.0, -0.5, -0.5])
    two, three = (rollouts_of(sequences[:n], group_size=n, advantages=advantages[:n]) for n in (2, 3))
    few, all_of_them = (Ucas(region="reasoning", token_rate=0.0)(gpt2(), rollouts) for rollouts in (two, three))
    for row in (0, 1):
        torch.testing.assert_close(all_of_them[row, three.reasoning_mask[row]], few[row, two.reasoning_mask[row]])
    assert not all_of_them[2].any()


def test_ucas_takes_from_tokens_of_completions_without_an_advantage(case):
    model, rollouts, found, mask = case
    actual = Ucas()(model, dataclasses.replace(rollouts, advantages=torch.zeros(4, dtype=torch.float64))).numpy()
    z = (found["logits"] - found["logits"][mask].min()) / np.ptp(found["logits"][mask])
    np.testing.assert_allclose(actual[mask], -0.05 * z[mask], rtol=1e-5, atol=1e-9)


def test_ucas_without_rates_is_the_group_advantage(case):
    model, rollouts, _, mask = case
    actual = Ucas(0, 0, 0)(model, rollouts).numpy()
    np.testing.assert_array_equal(actual, A[:, None] * mask)


def test_equal_logits_count_one_half(case, monkeypatch):
    model, rollouts, _, mask = case
    same = Probability().predictions(model, rollouts)
    monkeypatch.setattr(Ucas, "predictions", lambda *_: same._replace(logits=torch.ones_like(same.logits)))
    actual = Ucas(0, 0, 0.05)(model, rollouts).numpy()
    np.testing.assert_allclose(actual[mask], (A[:, None] - 0.025 * np.ones_like(actual))[mask])


@pytest.mark.parametrize(
    ("make", "knobs", "message"),
    [
        (Steer, {"low": 0}, r"scorer\.low .* \(0, 1\], got 0"),
        (Ucas, {"token_rate": -1}, r"scorer\.token_rate must be finite and >= 0, got -1"),
    ],
)
def test_bad_knobs_are_named(make, knobs, message):
    with pytest.raises(ValueError, match=message):
        make(**knobs)
