"""The optimal token baseline against numpy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.toy import gpt2, rollouts_of

from oar_lightning.credit.scorers.forward_free import Otb, Probability
from oar_lightning.policy.language_model import evaluating

SEQUENCES = [
    {"before": [3, 4], "reasoning": [8, 9, 10, 11, 12], "answer": [13]},
    {"before": [3, 4], "reasoning": [15, 16], "answer": [22], "tail": [1]},
    {"before": [3, 4], "reasoning": [17, 18, 19], "answer": [2]},
]
R = np.array([1.0, 0.0, 0.5])


@pytest.fixture(scope="module")
def case():
    rollouts = rollouts_of(SEQUENCES, rewards=torch.tensor(R), advantages=torch.tensor(R))
    return gpt2(), rollouts


def test_the_norm_is_that_of_the_gradient_by_the_logits(case):
    """1 - 2 p + sum of p^2 = |onehot - pi|^2."""
    model, rollouts = case
    found = Probability().predictions(model, rollouts)
    with evaluating(model), torch.no_grad():
        logits = model(rollouts.token_ids, attention_mask=rollouts.attention_mask.long()).logits.double()
    for column in rollouts.response_mask[0].nonzero().flatten().tolist():  # a row without padding on the left
        pi = logits[0, column - 1].softmax(-1)
        pi[rollouts.token_ids[0, column]] -= 1
        size = 1 - 2 * found.logprobs[0, column].exp() + found.collision[0, column]
        assert float(size) == pytest.approx(float(pi.square().sum()), rel=1e-6)


def test_advantages_against_numpy(case):
    model, rollouts = case
    found = Probability().predictions(model, rollouts)
    e = (1 - 2 * found.logprobs.exp() + found.collision).numpy()
    mask = rollouts.response_mask.numpy()
    w = [np.cumsum(e[i, mask[i]]) for i in range(3)]
    longest = sorted(map(len, w))
    actual = Otb()(model, rollouts).numpy()
    for i in range(3):
        for t, value in enumerate(actual[i, mask[i]]):
            alive = [j for j in range(3) if len(w[j]) > t]
            baseline = sum(R[j] * w[j][t] for j in alive) / (sum(w[j][t] for j in alive) + 1e-8) if t < longest[1] else 0
            assert value == pytest.approx(R[i] - baseline, abs=1e-9)


def test_equal_weights_give_the_group_mean(case, monkeypatch):
    model, rollouts = case
    same = Probability().predictions(model, rollouts)
    flat = same._replace(logprobs=torch.full_like(same.logprobs, -100.0), collision=torch.zeros_like(same.collision))
    monkeypatch.setattr(Otb, "predictions", lambda *_: flat)
    actual = Otb()(model, rollouts)
    lengths = rollouts.response_mask.sum(1).tolist()
    for i in range(3):
        for t, value in enumerate(actual[i, rollouts.response_mask[i]].tolist()):
            alive = [R[j] for j in range(3) if lengths[j] > t]
            assert value == pytest.approx(R[i] - (np.mean(alive) if len(alive) > 1 else 0), abs=1e-7)


def test_the_only_known_completion_of_a_group_is_its_own_baseline(case):
    model, rollouts = case
    nan = float("nan")
    actual = Otb()(model, dataclasses.replace(rollouts, rewards=torch.tensor([nan, 1.0, nan])))
    torch.testing.assert_close(actual, torch.zeros_like(actual))


def test_a_completion_whose_reward_is_not_known_is_left_out(case):
    """The others have what they have without it; its own tokens score 0."""
    model, rollouts = case
    two = rollouts.select(torch.tensor([0, 1]))
    abstained = dataclasses.replace(rollouts, rewards=torch.tensor([1.0, 0.0, float("nan")]))
    actual, expected = Otb()(model, abstained), Otb()(model, dataclasses.replace(two, group_size=2))
    torch.testing.assert_close(actual[:2], expected)
    assert not actual[2].any()
