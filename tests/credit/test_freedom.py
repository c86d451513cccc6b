"""Freedom: what cannot be another gets nothing, and the default changes nothing."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch
from support.toy import gpt2, rollouts_of

from oar_lightning.credit.freedom import Freedom, Mode
from oar_lightning.credit.scorers import OarG, OarP, OarPApproximate, TotalEffect, TotalEffectFast
from oar_lightning.policy.language_model import evaluating, prediction_states
from oar_lightning.policy.token_budget import TokenBudget

SEQUENCES = [
    {"before": [3, 4, 5, 6], "reasoning": [8, 9, 10, 11, 12], "answer": [12, 13]},
    {"before": [14], "reasoning": [15, 16, 17, 18], "answer": [22]},
]
INFLUENCE: dict[str, Any] = {
    "oar_g": OarG,
    "oar_p": OarP,
    "oar_p_approximate": OarPApproximate,
    "total_effect": functools.partial(TotalEffect, free_below=1.0),
    "total_effect_fast": TotalEffectFast,
}


def probabilities(model: Any, rollouts: Any) -> torch.Tensor:
    """Of each token, by the model's own forward pass, row by row."""
    out = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64)
    for row, mask in enumerate(rollouts.attention_mask):
        ids = rollouts.token_ids[row][mask]
        with torch.no_grad(), evaluating(model):
            p = model(ids[None]).logits[0, :-1].softmax(-1)
        out[row, mask.nonzero().flatten()[1:]] = p.gather(1, ids[1:, None])[:, 0]
    return out


@pytest.mark.parametrize("name", INFLUENCE)
def test_weight_multiplies_by_one_minus_p_and_mask_leaves_out_certain_tokens(name: str) -> None:
    model, rollouts = gpt2(), rollouts_of(SEQUENCES)
    p = probabilities(model, rollouts)
    plain = INFLUENCE[name](freedom="none")(model, rollouts)
    weighted = INFLUENCE[name](freedom="weight")(model, rollouts)
    torch.testing.assert_close(weighted, plain * (1 - p), rtol=1e-6, atol=1e-12)
    if name != "total_effect":  # there the threshold says what is run, too
        ordered = p[rollouts.reasoning_mask].unique()
        middle = len(ordered) // 2
        threshold = float(ordered[middle - 1 : middle + 1].mean())  # between two: of the median itself rounding decides
        masked = INFLUENCE[name](freedom="mask", free_below=threshold)(model, rollouts)
        torch.testing.assert_close(masked, torch.where(p < threshold, plain, 0.0), rtol=1e-6, atol=1e-12)
        assert 0 < int((masked[rollouts.reasoning_mask] == 0).sum()) < int(rollouts.reasoning_mask.sum())


@pytest.mark.parametrize("mode", ["weight", "mask"])
def test_nothing_is_learned_through_it(mode: Mode) -> None:
    rollouts = rollouts_of(SEQUENCES)
    scores = torch.ones(rollouts.token_ids.shape, requires_grad=True)
    assert not Freedom(mode)(gpt2(), rollouts, scores, TokenBudget("test", None, 1))[0].requires_grad


@pytest.mark.parametrize("name", ["oar_g", "oar_p", "oar_p_approximate"])
def test_oar_has_none_by_default(name: str) -> None:
    model, rollouts = gpt2(), rollouts_of(SEQUENCES)
    assert torch.equal(INFLUENCE[name]()(model, rollouts), INFLUENCE[name](freedom="none")(model, rollouts))


def test_a_certain_token_gets_nothing() -> None:
    scores, logprobs = torch.ones(3), torch.tensor([0.0, -1e-9, -0.7])
    assert Freedom("weight").of_logprobs(scores, logprobs).tolist() == pytest.approx([0, 0, 0.5034], abs=1e-4)
    assert Freedom("mask").of_logprobs(scores, logprobs).tolist() == [0, 0, 1]
    assert Freedom("mask", 1.0).of_logprobs(scores, torch.tensor([0.0, -0.1, -0.7])).tolist() == [0, 1, 1]
    assert Freedom().of_logprobs(scores, logprobs) is scores


def test_kept_states_spare_the_pass() -> None:
    model, rollouts = gpt2(), rollouts_of(SEQUENCES)
    with evaluating(model):
        states = prediction_states(model, rollouts.attention_mask, rollouts.token_ids).detach()
    costs = []
    for given in (None, states):
        for freedom in ("none", "weight"):
            scorer = OarP(freedom=freedom)
            scorer(model, dataclasses.replace(rollouts, prediction_states=given))
            costs.append(scorer.metrics["forward_equivalents"])
    assert costs[1] - costs[0] == pytest.approx(1)
    assert costs[3] == costs[2] == costs[0]


@pytest.mark.parametrize("make", INFLUENCE.values(), ids=INFLUENCE)
def test_bad_settings_are_named(make: Any) -> None:
    with pytest.raises(ValueError, match=r"scorer\.freedom must be one of none, weight, mask, got 'some'"):
        make(freedom="some")
    with pytest.raises(ValueError, match=r"scorer\.free_below is a probability .* got 0"):
        make(free_below=0)
