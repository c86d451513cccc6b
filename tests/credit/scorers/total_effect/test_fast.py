"""Fast total effect against its formula by autograd on a plain model, and where a restatement screens a decision off."""

from __future__ import annotations

import pytest
import torch
from support.toy import gpt2, padded, rollouts_of

from oar_lightning.credit.scorers import TotalEffectFast
from oar_lightning.credit.scorers.base import row_generator

SEQUENCES = [
    {"before": [3, 4, 5, 6, 7], "reasoning": [8, 9, 10, 4, 17], "conclude": [11], "answer": [12, 13], "tail": [1, 2]},
    {"before": [14], "reasoning": [15, 16, 17, 18, 19, 20, 21], "answer": [22]},
]


def transcribed(model, rollouts, row, rounds, draws, seed):
    """The whole text in one graph, its readings differentiated anew in each round."""
    keep = rollouts.attention_mask[row]
    ids, reasoning, answer = (x[row][keep] for x in (rollouts.token_ids, rollouts.reasoning_mask, rollouts.answer_mask))
    embeddings = model.get_input_embeddings().weight.detach()
    given = embeddings[ids][None].clone().requires_grad_()
    logprobs = (model(inputs_embeds=given).logits[0, :-1] / rollouts.temperature).log_softmax(-1)
    p = logprobs.detach().exp()
    chosen = torch.cat([torch.zeros(1), logprobs.gather(1, ids[1:, None])[:, 0]])
    odds = chosen - (1 - chosen.exp()).clamp(min=1e-30).log()
    rng = row_generator(rollouts, row, seed)
    uniforms = torch.rand(int(reasoning.sum()), draws, dtype=torch.float64, generator=rng)
    differences = torch.zeros(draws, *given.shape[1:], dtype=torch.float64)
    for number, t in enumerate(reasoning.nonzero().flatten().tolist()):
        rest = p[t - 1].clone()
        rest[ids[t]] = 0
        steps = (rest / rest.sum()).cumsum(0)
        for k in range(draws):
            other = int((steps <= uniforms[number, k]).sum())
            assert other != ids[t]
            differences[k, t] = embeddings[other] - embeddings[ids[t]]
    influence = torch.zeros(len(ids), dtype=torch.float64)
    for _ in range(rounds):
        importance = torch.where(answer, 1.0, influence)
        reading = sum(importance[s] * odds[s] / odds[s].detach().clamp(min=1) for s in range(1, len(ids)) if importance[s] > 0)
        (gradient,) = torch.autograd.grad(reading, given, retain_graph=True)
        change = (gradient[0] * differences).sum(-1).abs().mean(0)
        influence = change * reasoning
        influence = influence / influence.max()
    return influence[reasoning], 1 - chosen.exp().detach()[reasoning]


@pytest.mark.parametrize(("token_budget", "temperature"), [(1, 1.0), (10**6, 1.0), (10**6, 2.0), (10**6, 0.5)])
@pytest.mark.parametrize("rounds", [1, 3])
def test_transcription(rounds, token_budget, temperature):
    """Probabilities and replacements are of the distribution that tokens were drawn from."""
    model = gpt2().eval()
    rollouts = padded(rollouts_of(SEQUENCES, temperature=temperature), left=2, right=1)
    for freedom in ("none", "weight"):
        found = TotalEffectFast(rounds, 2, seed=3, token_budget=token_budget, freedom=freedom)(model, rollouts)
        for row, mask in enumerate(rollouts.reasoning_mask):
            expected, rest = transcribed(model, rollouts, row, rounds, 2, 3)
            torch.testing.assert_close(
                found[row, mask], expected * rest if freedom == "weight" else expected, rtol=1e-6, atol=1e-9
            )


def test_further_rounds_see_a_screened_off_decision(relaying_model):
    """The answer is read from the restatement alone: one gradient hardly sees the decision, the next ones do."""
    model, rollouts, decision = relaying_model
    rows = torch.arange(len(rollouts))
    one, three = (TotalEffectFast(rounds, freedom="none")(model, rollouts)[rows, decision].mean() for rounds in (1, 3))
    assert one < 0.15
    assert three > 3 * one


def test_cost_is_counted():
    """A forward and two backward passes over all but the answer's last token; the prompt but its last token once."""
    rollouts = rollouts_of([{"before": [1, 2], "reasoning": [3, 4, 5], "answer": [6], "tail": [7, 8, 9, 10]}])
    scorer = TotalEffectFast()
    scorer(gpt2(), rollouts)
    assert scorer.metrics == {"forward_equivalents": (1 + 3 * 4) / 10}


def test_errors_name_the_key():
    with pytest.raises(ValueError, match=r"scorer\.rounds must be >= 1, got 0"):
        TotalEffectFast(rounds=0)
    with pytest.raises(ValueError, match=r"scorer\.num_draws must be >= 1, got 0"):
        TotalEffectFast(num_draws=0)
    with pytest.raises(ValueError, match=r"scorer\.token_budget .* got 0"):
        TotalEffectFast(token_budget=0)
