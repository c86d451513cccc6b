"""Shared prefixes give the same counterfactual scores as full-length ones, where the cache allows sharing."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.families import FAMILIES, sliding_qwen2, texts
from support.toy import gpt2

from oar_lightning.credit.scorers import OarP, ProbeSchedule
from oar_lightning.credit.scorers.prefix import read_prompts
from oar_lightning.credit.scorers.probes import PROBES
from oar_lightning.credit.scorers.reference import ReferenceOarP
from oar_lightning.policy.decoder import ModuleDecoder
from oar_lightning.policy.language_model import can_share_prefixes
from oar_lightning.policy.token_budget import TokenBudget


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize(
    "token_budget", [pytest.param(1, marks=pytest.mark.slow), 60, pytest.param(10**6, marks=pytest.mark.slow)]
)
def test_shared_prefixes_change_no_score(family, probe, token_budget):
    model = FAMILIES[family]().double().eval()
    assert can_share_prefixes(model)
    rollouts, schedule = texts(), ProbeSchedule(probe)
    full = OarP(schedule, 10**6, fill_token_id=0, share_prefixes=False)
    shared = OarP(schedule, token_budget, fill_token_id=0)
    expected, actual = full(model, rollouts), shared(model, rollouts)
    assert float(expected.max()) > 1e-4
    # Qwen2's and Llama's norms and rotary tables work in float32 inside
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=3e-6 if family != "gpt2" else 1e-12)
    assert shared.metrics["forward_equivalents"] < 0.8 * full.metrics["forward_equivalents"]


@pytest.mark.parametrize("probe", PROBES)
def test_an_answer_that_begins_before_the_reasoning_ends(probe):
    """Some of the answer stands before masked tokens, which do not touch it."""
    model = FAMILIES["gpt2"]().double().eval()
    rollouts = texts()
    answer = rollouts.answer_mask.clone()
    answer[0, 7] = True
    mixed = dataclasses.replace(rollouts, answer_mask=answer, reasoning_mask=rollouts.reasoning_mask & ~answer)
    if probe == "last":
        mixed = dataclasses.replace(mixed, reasoning_mask=mixed.reasoning_mask & (torch.arange(answer.shape[1]) < 7))
    schedule = ProbeSchedule(probe)
    expected = ReferenceOarP(schedule, fill_token_id=0)(model, mixed)
    torch.testing.assert_close(OarP(schedule, fill_token_id=0)(model, mixed), expected, rtol=1e-9, atol=1e-12)


def test_models_with_a_sliding_window_fall_back_to_full_length():
    model = sliding_qwen2().double().eval()
    assert not can_share_prefixes(model)
    rollouts = texts()
    actual, full = OarP()(model, rollouts), OarP(share_prefixes=False)(model, rollouts)
    torch.testing.assert_close(actual, full, rtol=0, atol=0)


def test_equal_prompts_are_read_once():
    model = gpt2().eval()
    ids = torch.tensor([[9, 3, 4, 5], [3, 4, 5, 6], [9, 3, 4, 5], [8, 3, 4, 5], [8, 3, 4, 5]])
    first = torch.tensor([1, 0, 1, 0, 1])
    past, owner, tokens = read_prompts(model, ModuleDecoder(model), ids, first, TokenBudget("scorer.token_budget", 7))
    assert tokens == 4 * 4  # the last two differ in their padding
    assert owner[0] == owner[2]
    assert len(set(owner.tolist())) == 4
    with torch.no_grad():
        for row in range(5):
            alone = model.get_decoder()(input_ids=ids[row : row + 1, first[row] :], use_cache=True).past_key_values
            for layer, keys in enumerate(past.keys):
                torch.testing.assert_close(keys[owner[row], :, first[row] :], alone.layers[layer].keys[0], rtol=0, atol=1e-5)


def test_no_prompt_is_nothing_read():
    past, owner, tokens = read_prompts(
        gpt2(), ModuleDecoder(gpt2()), torch.empty(3, 0, dtype=torch.long), torch.zeros(3).long(), TokenBudget("any")
    )
    assert past.width == tokens == 0
    assert owner.tolist() == [0, 1, 2]
