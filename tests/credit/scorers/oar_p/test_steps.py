"""OAR-P by steps against texts that are masked one by one and run in full."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.families import FAMILIES, sliding_qwen2, texts
from support.toy import gpt2, padded, rollouts_of

from oar_lightning.credit.scorers import MinForm, OarP, OarPSteps, ProbeSchedule
from oar_lightning.credit.scorers.probes import PROBES
from oar_lightning.credit.scorers.steps import min_form
from oar_lightning.credit.segments import EntropyCuts, FixedLength, Sentences

FILL = 39


@dataclasses.dataclass(frozen=True)
class Cuts(FixedLength):
    """Steps of uneven lengths: the tokens 0, 2, 3, 7 and 12 of a reasoning begin one."""

    def cuts(self, model, rollouts, mask):
        rank = mask.long().cumsum(1) - 1
        return torch.isin(rank, torch.tensor([2, 3, 7, 12]))


def truth(model, rollouts, name, starts):
    """Every step's tokens replaced in the whole text, the outcome written out; [B S]."""
    scores = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64)

    def outcome(ids, answer):
        logits = model(ids[None]).logits[0, answer - 1]
        if name == "answer_joint":
            return logits.log_softmax(-1).gather(1, ids[answer][:, None]).mean()
        return (logits[0] if name == "last" else logits.mean(0)).log_softmax(-1)

    for row in range(len(rollouts)):
        columns = rollouts.attention_mask[row].nonzero().flatten()
        ids = rollouts.token_ids[row, columns]
        reasoning = rollouts.reasoning_mask[row, columns].nonzero().flatten().tolist()
        answer = rollouts.answer_mask[row, columns].nonzero().flatten()
        steps = []
        for place in reasoning:
            if starts[row, columns[place]] or not steps:
                steps.append([])
            steps[-1].append(place)
        clean = outcome(ids, answer)
        for step in steps:
            masked = ids.clone()
            masked[step] = FILL
            other = outcome(masked, answer)
            scores[row, columns[step]] = (
                (clean - other).abs() if name == "answer_joint" else (clean.exp() * (clean - other)).sum()
            ).double()
    return scores


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_every_token_has_the_score_of_its_masked_step(family, probe, share):
    torch.manual_seed(0)
    model, rollouts = FAMILIES[family]().double().eval(), texts()
    scorer = OarPSteps(ProbeSchedule(probe), segments=Cuts(), fill_token_id=FILL, share_prefixes=share, token_budget=90)
    actual = scorer(model, rollouts)
    expected = truth(model, rollouts, probe, Cuts()(model, rollouts, rollouts.reasoning_mask))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-9)
    assert scorer.metrics["segments"] == pytest.approx((4 + 5 + 1 + 4 + 4) / 5)


@pytest.mark.parametrize("probe", PROBES)
def test_steps_of_one_token_are_oar_p(probe):
    model, rollouts = gpt2().eval(), texts()
    by_step = OarPSteps(ProbeSchedule(probe), segments=FixedLength(1))
    by_token = OarP(ProbeSchedule(probe))
    torch.testing.assert_close(by_step(model, rollouts), by_token(model, rollouts), rtol=1e-9, atol=1e-15)
    assert by_step.metrics["forward_equivalents"] == by_token.metrics["forward_equivalents"]


def test_fewer_steps_cost_less():
    model, rollouts = gpt2().eval(), texts()
    costs = []
    for length in (1, 2, 4, 8):
        scorer = OarPSteps(segments=FixedLength(length))
        scorer(model, rollouts)
        costs.append(scorer.metrics["forward_equivalents"])
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 0.5 * costs[0]


def test_padding_order_and_neighbours_do_not_matter():
    model, rollouts = gpt2().eval(), texts()
    expected = OarPSteps(segments=Cuts())(model, rollouts)
    order = torch.tensor([3, 1, 4, 0])
    actual = OarPSteps(segments=Cuts(), token_budget=40)(model, padded(rollouts.select(order), left=3, right=2))
    for i, row in enumerate(order.tolist()):
        torch.testing.assert_close(actual[i][actual[i] > 0], expected[row][expected[row] > 0], rtol=1e-9, atol=1e-15)


def test_a_model_without_shared_prefixes_is_scored():
    model, rollouts = sliding_qwen2().double().eval(), texts()
    with torch.no_grad():
        expected = truth(model, rollouts, "answer_mean", Cuts()(model, rollouts, rollouts.reasoning_mask))
    actual = OarPSteps(segments=Cuts(), fill_token_id=FILL)(model, rollouts)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-9)


def test_other_divisions_and_freedom_and_the_min_form():
    model, rollouts = gpt2().eval(), texts()
    by_entropy = OarPSteps(segments=EntropyCuts(share=0.2, shortest=2))
    found = by_entropy.steps(model, rollouts)
    for numbers, scores, mask in zip(found.numbers, found.scores, rollouts.reasoning_mask, strict=True):
        assert (numbers[mask] >= 0).all()
        assert all(len(scores[numbers == k].unique()) == 1 for k in range(int(numbers.max()) + 1))
    torch.testing.assert_close(MinForm(by_entropy, 0.5)(model, rollouts), min_form(found, 0.5))
    weighed = OarPSteps(segments=EntropyCuts(share=0.2, shortest=2), freedom="weight")(model, rollouts)
    inside = rollouts.reasoning_mask
    assert (weighed[inside] < found.scores[inside]).all(), "each token's own probability"
    torch.testing.assert_close(
        OarPSteps(segments=FixedLength(1), freedom="weight")(model, rollouts), OarP(freedom="weight")(model, rollouts)
    )


def test_no_text_names_the_key():
    with pytest.raises(ValueError, match=r"scorer\.segments"):
        OarPSteps(segments=Sentences())(gpt2().eval(), rollouts_of([{"before": [3], "reasoning": [4, 5], "answer": [6]}]))
