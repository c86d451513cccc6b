"""KTAE's statistics against scipy, and its keys in cases worked out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import fisher_exact
from support.toy import rollouts_of

from oar_lightning.credit.scorers.forward_free import Ktae
from oar_lightning.credit.scorers.forward_free.counting import fisher_p, information_gain, key_values

TABLES = [(a, b, n, m) for n in (1, 3, 5) for m in (1, 2, 6) for a in range(n + 1) for b in range(m + 1)]


def column(value):
    return torch.tensor([float(value)], dtype=torch.float64)


@pytest.mark.parametrize(("a", "b", "n", "m"), TABLES)
def test_fisher_is_scipys(a, b, n, m):
    assert float(fisher_p(column(a), column(b), n, m)) == pytest.approx(fisher_exact([[a, b], [n - a, m - b]]).pvalue, abs=1e-9)


@pytest.mark.parametrize(("a", "b", "n", "m"), TABLES)
def test_information_gain_is_the_mutual_information(a, b, n, m):
    joint = np.array([[a, b], [n - a, m - b]]) / (n + m)
    product = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.nansum(joint * np.log2(joint / product))
    assert float(information_gain(column(a), column(b), n, m)) == pytest.approx(expected, abs=1e-9)


def numpy_keys(counts, right, frequencies):
    """Id by id, from the formulas."""
    keys = []
    for u in range(counts.shape[1]):
        a, b = (counts[right, u] > 0).sum(), (counts[~right, u] > 0).sum()
        n, m = right.sum(), (~right).sum()
        p = fisher_exact([[a, b], [n - a, m - b]]).pvalue
        f = np.exp(-2 * p) if p < 1 - 1e-9 else 0.0
        g = float(information_gain(column(a), column(b), int(n), int(m)))
        x = np.arcsin(np.sqrt(a / n)) - np.arcsin(np.sqrt(b / m))
        if frequencies:
            sizes = np.array([counts[right].sum(), counts[~right].sum()], dtype=float)
            share = np.array([counts[right, u].sum(), counts[~right, u].sum()]) / sizes
            tf = share * 3 / (share + 2 * (0.5 + 0.5 * sizes / sizes.mean()))
            x += tf[0] / (tf[1] + 1e-5) - tf[1] / (tf[0] + 1e-5)
        keys.append(2 / (1 + np.exp(-(f + g) * x / 2)) - 1)
    return keys


@pytest.mark.parametrize("frequencies", [True, False])
def test_keys_against_numpy(frequencies):
    generator = np.random.default_rng(0)
    counts = generator.poisson(0.8, (7, 12))
    right = np.array([True, False, True, True, False, False, True])
    actual = key_values(torch.tensor(counts, dtype=torch.float64), torch.tensor(right), frequencies)
    assert actual.tolist() == pytest.approx(numpy_keys(counts, right, frequencies), abs=1e-9)


def test_an_id_of_one_class_saturates_with_frequencies_only():
    """In one of two correct completions and in no wrong one, which says little: p = 1, so f = 0."""
    counts = torch.tensor([[1.0, 1], [0, 1], [0, 1], [0, 1]], dtype=torch.float64)
    right = torch.tensor([True, True, False, False])
    assert float(key_values(counts, right, True)[0]) == pytest.approx(1.0, abs=1e-6)
    assert 0 < float(key_values(counts, right, False)[0]) < 0.15


def test_tokens_get_the_key_of_their_id():
    sequences = [{"before": [1], "reasoning": [5, 6, 5]}, {"before": [1], "reasoning": [7, 6]}] * 2
    rollouts = rollouts_of(sequences, group_size=4)
    rollouts = dataclasses.replace(rollouts, advantages=torch.tensor([1.0, -1.0, 1.0, -1.0]))
    scores = Ktae(frequencies=False)(None, rollouts)
    expected = key_values(torch.tensor([[2.0, 1, 0], [0, 1, 1]] * 2, dtype=torch.float64), rollouts.advantages > 0, False)
    assert scores[0, rollouts.response_mask[0]].tolist() == pytest.approx(expected[[0, 1, 0]].tolist())
    assert scores[1, rollouts.response_mask[1]].tolist() == pytest.approx(expected[[2, 1]].tolist())
    assert float(expected[0]) > 0.3
    assert float(expected[1]) == 0
    assert float(expected[2]) == pytest.approx(-float(expected[0]))


def test_a_group_of_one_class_has_no_keys():
    rollouts = rollouts_of([{"before": [1], "reasoning": [5]}] * 2, advantages=torch.tensor([1.0, 1.0]))
    assert not Ktae()(None, rollouts).any()


def test_a_completion_whose_reward_is_not_known_is_neither_right_nor_wrong():
    """It would be wrong by its advantage of 0, and its keys its advantage."""
    sequences = [{"before": [1], "reasoning": ids, "answer": [9]} for ids in ([5, 6], [5, 7], [7, 8], [6, 8])]
    advantages, rewards = torch.tensor([1.0, -0.5, -0.5, 0.0]), torch.tensor([1.0, 0.0, 0.0, float("nan")])
    rollouts = rollouts_of(sequences, group_size=4, advantages=advantages, rewards=rewards)
    scores = Ktae()(None, rollouts)
    assert not scores[3].any()
    known = rollouts_of(sequences[:3], group_size=3, advantages=advantages[:3], rewards=rewards[:3])
    torch.testing.assert_close(scores[:3], Ktae()(None, known))
