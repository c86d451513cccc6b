"""Approximate OAR-P: first order where it must be exact, exact where the budget says so."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import pytest
import torch
from support.families import FAMILIES, sliding_qwen2, texts
from support.toy import gpt2, padded, rollouts_of
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from oar_lightning.credit.scorers import Attribution, OarG, OarP, OarPApproximate, ProbeSchedule, Spans
from oar_lightning.credit.scorers.probes import PROBES
from oar_lightning.credit.scorers.reference import ReferenceOarP
from oar_lightning.policy.attention import NAME

SMALL = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
MEDIUM = SMALL | {"intermediate_size": 48, "max_position_embeddings": 64}
EXPERTS = {
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
OTHER_FAMILIES = {
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**MEDIUM)),
    "phi": lambda: PhiForCausalLM(PhiConfig(**MEDIUM)),
    "opt": lambda: OPTForCausalLM(OPTConfig(**SMALL, ffn_dim=48, max_position_embeddings=64, word_embed_proj_dim=32)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**MEDIUM, num_key_value_heads=2, head_dim=8)),
    "qwen2_moe": lambda: Qwen2MoeForCausalLM(Qwen2MoeConfig(**MEDIUM, **EXPERTS, num_key_value_heads=2)),
}
COARSE = {"attribution": Attribution(), "spans": Spans(3)}


def alike(model, scale):
    """A model whose tokens are nearly alike, so that masking one is a small change, in layers that respond to it."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data *= 8
    weight = model.get_input_embeddings().weight
    weight.data = weight.data[:1] + scale * weight.data
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("probe", PROBES)
def test_attribution_is_the_first_order(family, probe, monkeypatch):
    """The error relative to the score falls in proportion to the size of the change."""
    monkeypatch.setattr("oar_lightning.credit.scorers.probes.FISHER_TOKENS", 40)  # a random model has no few probable tokens
    rollouts, schedule, errors = texts(), ProbeSchedule(probe), []
    for scale in (1e-2, 1e-3) if family == "gpt2" else (1e-1, 1e-2):
        torch.manual_seed(0)
        model = alike(FAMILIES[family]().double().eval(), scale)
        exact = OarP(schedule)(model, rollouts)[rollouts.reasoning_mask]
        estimate = OarPApproximate(schedule, coarse=Attribution(39), budget=0.0)(model, rollouts)[rollouts.reasoning_mask]
        errors.append(float((estimate - exact).abs().max() / exact.max()))
    assert errors[1] < 0.2 * errors[0]
    assert errors[1] < 0.08


@pytest.mark.parametrize("family", FAMILIES)
def test_attribution_in_blocks_of_queries_is_that_of_all_at_once(family, monkeypatch):
    model, rollouts = FAMILIES[family]().double().eval(), texts()
    expected = OarPApproximate(budget=0.0)(model, rollouts)
    monkeypatch.setattr("oar_lightning.credit.scorers.oar_p.attribution.QUERIES", 3)
    monkeypatch.setattr("oar_lightning.policy.decoder.past.BLOCK", 2)
    torch.testing.assert_close(OarPApproximate(budget=0.0)(model, rollouts), expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("coarse", COARSE)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_large_budget_makes_every_score_exact(family, coarse):
    model, rollouts = FAMILIES[family]().double().eval(), texts()
    actual = OarPApproximate(coarse=COARSE[coarse], budget=10**6)(model, rollouts)
    torch.testing.assert_close(actual, OarP()(model, rollouts), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("late_share", [0.0, 0.75, 1.0])
def test_the_budget_buys_late_tokens_then_the_largest_estimates(late_share):
    model = gpt2().eval()
    rollouts = rollouts_of([{"before": [3, 4], "reasoning": list(range(5, 25)), "conclude": [26], "answer": [27, 28]}])
    exact = OarP()(model, rollouts)[0, 2:22]
    coarse = OarPApproximate(budget=0.0)(model, rollouts)[0, 2:22]
    spent = (1 + 3) * 23 + 20 + 2  # window forward and three times back, fills, prompt
    costs = torch.arange(23, 3, -1)
    large = int(coarse[:15].argmax())
    left = 4 * int(costs[large])  # a quarter of it buys the largest estimate
    late = [t for t in range(19, -1, -1) if int(costs[t:].sum()) <= late_share * left]
    assert large not in late
    mixed = OarPApproximate(coarse=Attribution(late_share=late_share), budget=(spent + left) / 25)(model, rollouts)[0, 2:22]
    is_exact = ((mixed - exact).abs() < 1e-12) & ((mixed - coarse).abs() > 1e-12)
    assert is_exact[late].all()
    others = [t for t in range(20) if t not in late]
    bought = [t for t in others if is_exact[t]]
    budget = left - int(costs[late].sum())
    expected, used = [], 0
    for t in sorted(others, key=lambda t: -float(coarse[t])):
        used += int(costs[t])
        if used > budget:
            break
        expected.append(t)
    assert expected or late_share == 1
    assert bought == sorted(expected)


@dataclass(frozen=True)
class EveryToken:
    """A coarse stage that estimates late tokens, too."""

    coarse: Attribution | Spans

    @property
    def late_share(self):
        return self.coarse.late_share

    def estimate(self, counterfactuals, texts, late):
        estimate = self.coarse.estimate(counterfactuals, texts, lambda _: torch.zeros_like(texts.reasoning))
        return estimate._replace(late=late(estimate.costs))


@pytest.mark.parametrize("budget", [6.0, 10.0**6])
@pytest.mark.parametrize("coarse", COARSE)
def test_what_is_scored_exactly_in_any_case_is_not_estimated(coarse, budget):
    model, rollouts = gpt2().double().eval(), texts()
    found, passes = [], []
    for stage in (COARSE[coarse], EveryToken(COARSE[coarse])):
        scorer = OarPApproximate(coarse=stage, budget=budget)
        found.append(scorer(model, rollouts))
        passes.append(scorer.metrics["forward_equivalents"])
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)
    assert found[0].any()
    assert passes[0] < passes[1]


def test_spans_share_the_score_of_what_they_mask():
    model = gpt2().eval()
    sequence = {"before": [3, 4], "reasoning": [5, 6, 7, 8, 9], "answer": [10]}
    rollouts = rollouts_of([sequence])
    scores = OarPApproximate(coarse=Spans(2), budget=0.0, fill_token_id=39)(model, rollouts)[0, 2:7]
    with torch.no_grad():

        def outcome(*masked):
            ids = rollouts.token_ids.clone()
            ids[0, list(masked)] = 39
            return model(ids).logits[0, 6].log_softmax(-1)

        expected = [float((outcome().exp() * (outcome() - outcome(*m))).sum()) for m in ((2, 3), (4, 5), (6,))]
    assert scores.tolist() == pytest.approx([expected[0]] * 2 + [expected[1]] * 2 + [expected[2]])


def test_a_span_masks_no_token_behind_the_reasoning():
    """The last span is cut where the reasoning ends: what introduces the answer stays, and so does the answer."""
    model = gpt2().eval()
    rollouts = rollouts_of([{"before": [3, 4], "reasoning": [5, 6, 7], "conclude": [8], "answer": [10, 11]}])
    for probe in PROBES:
        scores = OarPApproximate(ProbeSchedule(probe), coarse=Spans(2), budget=0.0, fill_token_id=39)(model, rollouts)
        alone = OarP(ProbeSchedule(probe), fill_token_id=39)(model, rollouts)
        assert float(scores[0, 4]) == pytest.approx(float(alone[0, 4]), rel=1e-6), probe


@pytest.mark.parametrize("coarse", COARSE)
@pytest.mark.parametrize("probe", PROBES)
def test_padding_order_and_neighbours_do_not_matter(coarse, probe):
    """Each completion has its own budget."""
    model, rollouts = gpt2().eval(), texts()
    scorer = functools.partial(OarPApproximate, ProbeSchedule(probe), coarse=COARSE[coarse], budget=6.0)
    expected = scorer()(model, rollouts)
    order = torch.tensor([3, 1, 4, 0])
    actual = scorer(token_budget=40)(model, padded(rollouts.select(order), left=3, right=2))
    for i, row in enumerate(order.tolist()):
        a = actual[i][actual[i] != 0] if coarse == "spans" else actual[i][actual[i] > 0]
        e = expected[row][expected[row] > 0]
        torch.testing.assert_close(a, e, rtol=1e-6, atol=1e-12)


def test_the_model_gets_its_attention_back_even_after_an_error():
    model = Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=40,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            layer_types=["full_attention"] * 2,
            attn_logit_softcapping=20.0,
        )
    ).eval()
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match="scorer/coarse=spans"):
        OarPApproximate()(model, texts())
    assert model.config._attn_implementation == before != NAME


def test_models_beside_the_attention_interface_are_scored_and_told_to_use_spans(caplog):
    model, rollouts = FalconForCausalLM(FalconConfig(**SMALL, alibi=False)).eval(), texts()
    torch.testing.assert_close(OarP()(model, rollouts), ReferenceOarP()(model, rollouts), rtol=1e-4, atol=1e-6)
    assert OarG()(model, rollouts).max() > 0
    with pytest.raises(ValueError, match=r"FalconForCausalLM.*scorer/coarse=spans"):
        OarPApproximate()(model, rollouts)
    assert OarPApproximate(coarse=Spans(4))(model, rollouts).max() > 0
    assert not caplog.records, "no warning at every step"


@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_other_families_agree_with_the_reference(family):
    """Parallel and sequential layers, learned and rotary positions, normed queries, experts, no module named mlp."""
    torch.manual_seed(0)
    model, rollouts = OTHER_FAMILIES[family]().eval(), texts()
    expected = ReferenceOarP()(model, rollouts)
    torch.testing.assert_close(OarP()(model, rollouts), expected, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(OarPApproximate(budget=10**6)(model, rollouts), expected, rtol=1e-3, atol=1e-6)


def test_models_without_plain_caches_are_told_to_use_spans():
    model = sliding_qwen2().eval()
    with pytest.raises(ValueError, match="scorer/coarse=spans"):
        OarPApproximate()(model, texts())
    assert OarPApproximate(coarse=Spans(4))(model, texts()).max() > 0


def test_overflowing_scores_of_replaced_keys_stay_finite():
    model, rollouts = gpt2().eval(), texts()
    for block in model.transformer.h:
        block.attn.c_attn.weight.data *= 30
    scores = OarPApproximate(budget=0.0)(model, rollouts)
    assert scores.isfinite().all()


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: OarPApproximate(budget=-1), "scorer.budget"),
        (lambda: Attribution(0), "scorer.coarse.directions"),
        (lambda: Spans(0), "scorer.coarse.size"),
        (lambda: Spans(late_share=-0.1), "scorer.coarse.late_share"),
        (lambda: Attribution(late_share=1.1), "scorer.coarse.late_share"),
    ],
)
def test_settings_are_checked(make, key):
    with pytest.raises(ValueError, match=key.replace(".", r"\.")):
        make()


def test_cost_is_reported():
    model, rollouts = gpt2().eval(), texts()
    exact, approximate = OarP(), OarPApproximate(coarse=Attribution(2), budget=4.0)
    exact(model, rollouts)
    approximate(model, rollouts)
    assert 0 < approximate.metrics["forward_equivalents"] < exact.metrics["forward_equivalents"]
    assert math.isfinite(approximate.metrics["forward_equivalents"])
