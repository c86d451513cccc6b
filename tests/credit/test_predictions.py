"""Numbers of predictions against a softmax by hand, and the contract of all scorers that read them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.toy import gpt2, padded, rollouts_of

from oar_lightning.credit.component import region_mask
from oar_lightning.credit.scorers import Scorer
from oar_lightning.credit.scorers.forward_free import (
    EntropyAdvantage,
    Gtpo,
    Hicra,
    Ktae,
    Otb,
    Probability,
    Steer,
    Ucas,
)
from oar_lightning.credit.scorers.forward_free.base import PredictionScorer
from oar_lightning.policy.language_model import evaluating, prediction_states
from oar_lightning.types import Rollouts

SCORERS: dict[str, Callable[..., Scorer]] = {
    "entropy_advantage": EntropyAdvantage,
    "gtpo": Gtpo,
    "probability": Probability,
    "steer": Steer,
    "ucas": Ucas,
    "otb": Otb,
    "ktae": Ktae,
    "hicra": Hicra,
}
READ = [name for name, make in SCORERS.items() if issubclass(make, PredictionScorer)]
SEQUENCES = [
    {"before": [3, 4, 5, 6], "reasoning": [8, 9, 10, 11, 12], "conclude": [11], "answer": [12, 13, 14], "tail": [1]},
    {"before": [3, 4, 5, 6], "reasoning": [15, 16, 17, 18, 19, 20, 21], "answer": [22]},
    {"before": [23, 24], "reasoning": [25], "conclude": [26, 27], "answer": [28, 29], "tail": [31, 32]},
    {"before": [23, 24], "reasoning": [33, 33, 34, 33, 35], "conclude": [36], "answer": [37, 38]},
]
TEXTS = ("so next one", "then we need to", "ab", "first, it is")


def given() -> Rollouts:
    rollouts = rollouts_of(SEQUENCES, group_size=2, completions=TEXTS)
    counts = rollouts.response_mask.sum(1).tolist()
    spans = tuple(tuple((i, i + 1) for i in range(n)) for n in counts)
    return dataclasses.replace(
        rollouts, advantages=torch.tensor([1.0, -1.0, -0.5, 0.5], dtype=torch.float64), token_spans=spans
    )


@pytest.fixture
def model():
    return gpt2()


def test_numbers_are_those_of_the_softmax(model):
    rollouts = given()
    found = Probability().predictions(model, rollouts)
    for row in range(len(rollouts)):
        used = rollouts.attention_mask[row]
        with evaluating(model), torch.no_grad():
            logits = model(rollouts.token_ids[row, used][None]).logits[0].double().numpy()
        first = int(used.nonzero()[0])
        for column in rollouts.response_mask[row].nonzero().flatten().tolist():
            z, y = logits[column - first - 1], int(rollouts.token_ids[row, column])
            p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
            expected = (np.log(p[y]), -(p * np.log(p)).sum(), (p**2).sum(), z[y], z.max() - np.log(p.max()) - z.mean())
            assert [float(x[row, column]) for x in found] == pytest.approx(expected, rel=1e-6)
        assert not any(x[row, ~rollouts.response_mask[row]].any() for x in found)


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("region", ["reasoning", "response"])
def test_scores_are_finite_and_lie_in_the_region(name, region, model):
    rollouts = given()
    before = copy.deepcopy(model.state_dict())
    scorer = SCORERS[name](region=region)
    scores = scorer(model, rollouts)
    assert scores.shape == rollouts.token_ids.shape
    assert scores.isfinite().all()
    assert not scores.requires_grad
    assert not scores[~region_mask(rollouts, region)].any()
    assert scores.any()
    assert scorer.signed or (scores >= 0).all()
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("name", SCORERS)
def test_padding_and_the_order_of_groups_do_not_matter(name, model):
    rollouts = given()
    expected = SCORERS[name]()(model, rollouts)
    actual = SCORERS[name]()(model, padded(rollouts, 3, 2))
    torch.testing.assert_close(actual[:, 3 : 3 + expected.shape[1]], expected, rtol=1e-7, atol=1e-12)
    order = torch.tensor([2, 3, 0, 1])
    turned = dataclasses.replace(rollouts.select(order), group_size=2)
    torch.testing.assert_close(SCORERS[name]()(model, turned), expected[order], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", READ)
def test_budgets_and_known_states_change_nothing(name, model):
    rollouts = given()
    expected = SCORERS[name]()(model, rollouts)
    for budget in (1, 30):
        torch.testing.assert_close(SCORERS[name](token_budget=budget)(model, rollouts), expected, rtol=1e-7, atol=1e-12)
    with evaluating(model):
        states = prediction_states(model, rollouts.attention_mask, rollouts.token_ids).detach()
    known = SCORERS[name]()
    actual = known(model, dataclasses.replace(rollouts, prediction_states=states))
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-12)
    assert known.metrics["forward_equivalents"] == 0
