"""Fills: held against whole forward passes over the replaced texts, and the drawn ones against their distributions."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from support.families import texts
from support.toy import gpt2, padded

from oar_lightning.credit.scorers import OarP, OarPApproximate, ProbeSchedule, TotalEffect
from oar_lightning.credit.scorers.oar_p import fills
from oar_lightning.credit.scorers.oar_p.attribution import Attribution
from oar_lightning.credit.scorers.oar_p.coarse import Spans
from oar_lightning.credit.scorers.oar_p.counterfactual import Counterfactuals
from oar_lightning.credit.scorers.oar_p.fills import FILLS, draw, sampled_ids
from oar_lightning.credit.scorers.oar_p.texts import texts_until_answer
from oar_lightning.credit.scorers.probes import PROBES
from oar_lightning.policy.decoder import ModuleDecoder, choose_decoder
from oar_lightning.policy.language_model import embed
from oar_lightning.policy.token_budget import TokenBudget


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("fill", FILLS)
def test_scores_are_those_of_whole_passes_over_the_filled_embeddings(fill, probe):
    model, rollouts = gpt2().double().eval(), texts()
    scores = OarP(ProbeSchedule(probe), fill=fill, seed=3)(model, rollouts)
    with torch.no_grad():
        whole = texts_until_answer(rollouts, PROBES[probe])
        fills = FILLS[fill](model, ModuleDecoder(model), whole, rollouts.pad_token_id, 3)
        for row in range(len(scores)):
            first = int(whole.first[row])
            ids, own = whole.token_ids[row, first:], fills[row, first:]
            place = PROBES[probe].locate(whole.answer[row : row + 1, first:], ids[None])

            def outcome(embeds, place=place):
                logits = model(inputs_embeds=embeds[None]).logits
                return PROBES[probe].outcome(logits[:, place.before[0]], place.token_ids, place.valid)

            clean, expected = outcome(embed(model, ids[None])[0]), []
            for position in whole.reasoning[row, first:].nonzero().flatten().tolist():
                embeds = embed(model, ids[None])[0].clone()
                embeds[position] = own[position]
                expected.append(PROBES[probe].distance(clean, outcome(embeds)))
            torch.testing.assert_close(scores[row, rollouts.reasoning_mask[row]], torch.cat(expected), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("fill", ["random_token", "model_sample"])
def test_draws_depend_on_the_text_and_the_seed_alone(fill):
    model, rollouts = gpt2().double().eval(), texts()
    score = OarP(fill=fill)
    expected = score(model, rollouts)
    alone = padded(rollouts.select(torch.tensor([3])), left=2, right=1)
    actual = score(model, alone)[alone.reasoning_mask]
    torch.testing.assert_close(actual, expected[3, rollouts.reasoning_mask[3]], rtol=1e-7, atol=1e-12)
    assert not torch.equal(OarP(fill=fill, seed=1)(model, rollouts), expected)


def test_the_model_draws_by_its_prediction_without_the_token():
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    n = 20000
    uniforms = (torch.arange(n) + 0.5) / n
    drawn = draw(probabilities.log().expand(n, -1), torch.full((n,), 2), uniforms)
    shares = torch.bincount(drawn, minlength=4) / n
    torch.testing.assert_close(shares.double(), torch.tensor([1, 2, 0, 4]).double() / 7, rtol=0, atol=1e-3)
    edge = draw(probabilities.log().expand(2, -1), torch.tensor([3, 0]), torch.tensor([1 - 1e-12, 0.0], dtype=torch.float64))
    assert edge.tolist() == [2, 1]


def test_near_temperature_0_the_model_draws_what_it_finds_likeliest_beside_the_token() -> None:
    model, rollouts = gpt2().eval(), dataclasses.replace(texts(), temperature=1e-4)
    whole = texts_until_answer(rollouts, PROBES["last"])
    found = sampled_ids(model, ModuleDecoder(model), whole, 0)
    for row in range(len(rollouts)):
        first = int(whole.first[row])
        with torch.no_grad():
            logits = model(whole.token_ids[row : row + 1, first:]).logits[0]
        for position in whole.reasoning[row].nonzero().flatten().tolist():
            others = logits[position - first - 1].clone()
            others[whole.token_ids[row, position]] = -torch.inf
            assert found[row, position] == others.argmax()


def test_random_tokens_are_spread_evenly():
    model, whole = gpt2(), texts_until_answer(texts(), PROBES["last"])
    weight = model.get_input_embeddings().weight
    counts = torch.zeros(len(weight))
    for seed in range(200):
        fills = FILLS["random_token"](model, ModuleDecoder(model), whole, 0, seed)[whole.reasoning]
        counts += torch.bincount((fills[:, None] == weight).all(-1).long().argmax(1), minlength=len(weight))
    expected = counts.sum() / len(weight)
    assert ((counts - expected).square() / expected).sum() < 39 + 5 * (2 * 39) ** 0.5


def test_a_large_budget_makes_the_approximation_exact_with_every_fill():
    model, rollouts = gpt2().double().eval(), texts()
    for fill in FILLS:
        actual = OarPApproximate(budget=10**6, fill=fill)(model, rollouts)
        torch.testing.assert_close(actual, OarP(fill=fill)(model, rollouts), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("make", [OarP, TotalEffect, partial(OarPApproximate, coarse=Spans(2), budget=0)])
def test_all_tokens_that_go_through_the_model_are_counted(make: Any, fill: str) -> None:
    model, rollouts, seen = gpt2().eval(), texts(), []
    model.transformer.h[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[:2].numel()))
    scorer = make(fill=fill)
    scorer(model, rollouts)
    assert scorer.metrics["forward_equivalents"] == sum(seen) / int(rollouts.attention_mask.sum())


@pytest.mark.parametrize("coarse", [Attribution(), Spans(2)])
def test_the_pass_that_draws_fills_is_paid_from_the_budget(coarse: Any) -> None:
    model, whole = gpt2().eval(), texts_until_answer(texts(), PROBES["last"])
    costs = []
    for fill in ("random_token", "model_sample"):
        budget = TokenBudget("test", None, 4096)
        masked = Counterfactuals(model, choose_decoder(model), PROBES["last"], FILLS[fill], 0, 0, budget, True)
        costs.append(torch.tensor(coarse.estimate(masked, whole, lambda _: torch.zeros_like(whole.reasoning)).costs))
    assert (costs[1] - costs[0]).tolist() == whole.lengths()


def test_the_mean_embedding_is_that_of_the_whole_vocabulary_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, whole = gpt2(), texts_until_answer(texts(), PROBES["last"])
    monkeypatch.setattr(fills, "BLOCK", 7)  # of 40 tokens
    found = FILLS["mean_embedding"](model, ModuleDecoder(model), whole, 0, 0)
    expected = model.get_input_embeddings().weight.double().mean(0).to(found)
    torch.testing.assert_close(found, expected.expand_as(found))


def test_errors_name_the_key():
    with pytest.raises(ValueError, match=r"scorer\.fill must be one of pad, .*got 'noise'"):
        OarP(fill="noise")
    with pytest.raises(ValueError, match=r"scorer\.fill_token_id=3"):
        OarP(fill="random_token", fill_token_id=3)


@pytest.mark.parametrize("token", [-1, 10**6])
@pytest.mark.parametrize("scorer", [OarP, OarPApproximate, TotalEffect])
def test_a_fill_that_is_no_token_is_named_before_the_first_step(scorer: Any, token: int) -> None:
    model = gpt2()
    filled = scorer(fill="pad", fill_token_id=token)
    with pytest.raises(
        ValueError, match=rf"scorer\.fill_token_id={token} is no token of the policy, whose ids are 0 to \d+; null"
    ):
        filled.check_model(model)
    with pytest.raises(ValueError, match=r"scorer\.fill_token_id"):
        filled(model, texts())
    scorer(fill="pad", fill_token_id=3).check_model(model)
