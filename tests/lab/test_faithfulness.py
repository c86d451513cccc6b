"""Removal on a policy that is written down: the decision acts through its restatement alone, and all of that is measured."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from support.relays import ANSWER, END, relaying_policy, relays

from oar_lightning.common.randomness import generator
from oar_lightning.lab.faithfulness import Faithfulness, chosen_rows
from oar_lightning.lab.kept import KeptContinuations
from oar_lightning.lab.store import Store
from oar_lightning.lab.types import Estimate, Studied
from oar_lightning.types import Continued, Rollouts

RIGHT = slice(0, None, 2)
"""Every other completion is right."""
PLACES = {"filler": 1, "decision": 2, "copy": 3, "restatement": 4, "tail": 5}


class Continuer:
    """Samples from the policy, one prefix at a time, and judges by the answer token."""

    def __init__(self) -> None:
        self.sampled = 0

    @torch.no_grad()
    def __call__(self, model, rollouts, prefixes, samples, seed, greedy=False) -> Continued:
        rewards = torch.zeros(len(prefixes), samples)
        for i, (row, column) in enumerate(prefixes):
            before = rollouts.token_ids[row, :column][rollouts.attention_mask[row, :column]]
            ids = before.repeat(samples, 1)
            rng = generator(seed, *before.tolist())
            while ids.shape[1] < 8:
                p = model(ids).logits[:, -1].softmax(-1)
                ids = torch.cat([ids, torch.multinomial(p, 1, generator=rng)], 1)
            rewards[i] = (ids[:, 7] == ANSWER[0] + "ijkl".index(rollouts.problems[row].answer)).float()
            self.sampled += samples
        return Continued(rewards, len(prefixes) * samples, 0)


def studied_of(rollouts: Rollouts) -> Studied:
    zeros, n = torch.zeros(rollouts.token_ids.shape), len(rollouts)
    verdicts = tuple(bool(r) for r in rollouts.rewards)
    return Studied(rollouts, tuple(range(n)), tuple(map(str, range(n))), verdicts, zeros, zeros, rollouts.reasoning_mask)


def estimate(name: str, scores: torch.Tensor, signed: bool = False) -> Estimate:
    return Estimate(name, scores, scores, signed, 0.0)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """(measures by key, curves by key, what was sampled, a second call's measures, what that sampled)"""
    model, studied = relaying_policy(), studied_of(dataclasses.replace(relays(6), pad_token_id=END))
    estimates = []
    for name, place in PLACES.items():
        scores = torch.zeros(studied.rollouts.token_ids.shape)
        scores[:, place] = 1.0
        estimates.append(estimate(name, scores))
    side = studied.rollouts.advantages[:, None]
    estimates.append(estimate("signed", estimates[1].scores * side, signed=True))
    estimates.append(estimate("oracle", estimates[3].scores))
    random = torch.rand(studied.rollouts.token_ids.shape, generator=torch.Generator().manual_seed(0))
    estimates.append(estimate("random", random))
    store = Store(tmp_path_factory.mktemp("lab") / "cache.db", "a policy")
    part = Faithfulness(("pad", "model_sample"), (0.1, 0.2), sets=8, completions=4, continuations=4, reward=True)
    continuer = Continuer()
    kept = KeptContinuations(continuer, store, 8)
    first = part(model, studied, estimates, kept, store, 0)
    sampled = continuer.sampled
    second = part(model, studied, estimates, kept, store, 0)
    return {m.key: m for m in first.measures}, {c.key: c for c in first.curves}, sampled, second, continuer.sampled - sampled


def mean(measure, name: str, rows=slice(None)) -> float:
    return float(torch.tensor(measure.values[name], dtype=torch.float64)[rows].nanmean())


def test_the_decision_has_a_total_effect_and_no_direct_one(found) -> None:
    """With what the policy might have written in their place; another kind of token would derail this policy."""
    measures, *_ = found
    direct, total, reward = (
        measures[f"{kind}.model_sample.comprehensiveness"] for kind in ("direct", "total", "direct_reward")
    )
    # of right completions; another decision than that of a wrong one is wrong, too, in two of three cases
    assert mean(total, "decision", RIGHT) > 0.9
    assert mean(total, "restatement", RIGHT) > 0.9
    assert mean(reward, "restatement", RIGHT) > 0.9
    assert mean(direct, "restatement", RIGHT) > 1.0
    assert abs(mean(reward, "decision", RIGHT)) < 0.1
    assert abs(mean(direct, "decision", RIGHT)) < 0.1
    for name in ("filler", "tail"):
        assert abs(mean(direct, name)) < 0.1
        assert abs(mean(total, name)) < 0.2
    assert total.values["signed"] == pytest.approx(total.values["decision"], nan_ok=True), "toward each one's own outcome"


def test_measures_are_of_all_completions_and_normalised(found) -> None:
    measures, curves, *_ = found
    assert len(measures) == 2 * (2 + 1 + 1 + 2) + 2 * (2 + 1 + 2)
    assert len(curves) == 2 * (2 + 1 + 2)
    total = measures["total.pad.comprehensiveness"].values["decision"]
    assert [i for i, v in enumerate(total) if math.isnan(v)] == [2, 5], "four of six, evenly spaced"
    scale = measures["direct.model_sample.comprehensiveness_normalized"]
    assert mean(scale, "oracle") == pytest.approx(1.0)
    assert mean(scale, "restatement") == pytest.approx(1.0)
    assert mean(scale, "random") == pytest.approx(0.0, abs=1e-9)
    assert mean(scale, "decision") < 0.1
    infidelity = measures["direct.model_sample.infidelity"]
    assert mean(infidelity, "restatement") < 0.05
    assert mean(infidelity, "filler") > 0.5


def test_what_the_store_holds_is_not_computed_again(found) -> None:
    measures, _, sampled, second, again = found
    assert sampled > 0
    assert again == 0
    for measure in second.measures:
        for name, values in measure.values.items():
            assert values == pytest.approx(measures[measure.key].values[name], abs=0, rel=0, nan_ok=True)


def test_rows_without_a_verdict_are_not_sampled() -> None:
    studied = studied_of(relays(5))
    assert chosen_rows(studied, 2).tolist() == [0, 2]
    assert chosen_rows(studied, 0).tolist() == []
    unknown = dataclasses.replace(studied, correct=(None, True, None, None, False))
    assert chosen_rows(unknown, 16).tolist() == [1, 4]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sets": -1}, r"lab\.faithfulness\.sets must be >= 0, got -1"),
        ({"continuations": 0}, r"lab\.faithfulness\.continuations must be >= 1, got 0"),
        ({"fills": ["zero"]}, r"lab\.faithfulness\.fills=\['zero'\] must be some of pad, "),
        ({"fractions": [0.5, 0.1]}, r"lab\.faithfulness\.fractions=\[0\.5, 0\.1\] must be .* rising"),
        ({"token_budget": 0}, r"lab\.faithfulness\.token_budget .* got 0"),
    ],
)
def test_errors_name_the_key(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        Faithfulness(**settings)
