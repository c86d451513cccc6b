"""Total effect against a brute force over plain forward passes, and where a restatement screens a decision off."""

from __future__ import annotations

import pytest
import torch
from support.toy import gpt2, padded, rollouts_of

from oar_lightning.common.randomness import derive_seed
from oar_lightning.credit.scorers import OarP, TotalEffect

SEQUENCES = [
    {"before": [3, 4, 5, 6, 7], "reasoning": [8, 9, 10, 4, 17], "conclude": [11], "answer": [12, 13], "tail": [1, 2]},
    {"before": [14], "reasoning": [15, 16, 17, 18, 19, 20, 21], "answer": [22]},
    {"before": [23, 24], "reasoning": [25], "conclude": [26, 27], "answer": [28, 29, 30], "tail": [31]},
]


def brute_force(model, sequence, fill, free_below):
    """One unpadded forward pass for every counterfactual, then the recursion with rows only where they are asked for."""
    ids = [t for part in ("before", "reasoning", "conclude", "answer") for t in sequence.get(part, [])]
    first = len(sequence["before"])
    reasoning = range(first, first + len(sequence["reasoning"]))
    answer = range(len(ids) - len(sequence["answer"]), len(ids))

    def p(tokens):
        with torch.no_grad():
            found = model(torch.tensor([tokens])).logits[0, :-1].softmax(-1)
        return torch.cat([torch.ones(1), found.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]])

    clean, rows = p(ids), {}
    asked = [t for t in reasoning if clean[t] < free_below]
    while asked:
        for t in asked:
            rows[t] = 1 - (p([*ids[:t], fill, *ids[t + 1 :]]) / clean).clamp(max=1)
        reached = {s for t, row in rows.items() for s in reasoning if s > t and row[s] > 1 - free_below}
        asked = sorted(reached - set(rows))
    effects = dict.fromkeys(reasoning, torch.tensor(0.0))
    for t in sorted(rows, reverse=True):
        kept = torch.stack([1 - rows[t][s] for s in answer]).prod()
        for s in reasoning:
            kept = kept * (1 - rows[t][s] * effects[s] if s > t else 1)
        effects[t] = 1 - kept
    return torch.stack([effects[t] for t in reasoning]), clean[list(reasoning)], rows


@pytest.mark.parametrize(
    ("token_budget", "share", "free_below"),
    [(1, True, 1.0), (50, True, 0.9), (10**6, True, 0.9), (10**6, True, 0.02), (30, False, 0.9)],
)
def test_brute_force(token_budget, share, free_below):
    model = gpt2().eval()
    rollouts = padded(rollouts_of(SEQUENCES), left=3, right=2)
    scorer = TotalEffect(
        token_budget, fill="pad", fill_token_id=39, share_prefixes=share, freedom="none", free_below=free_below
    )
    importance = scorer(model, rollouts)
    weighted = TotalEffect(token_budget, fill="pad", fill_token_id=39, free_below=free_below)(model, rollouts)
    ran = 0
    for i, (sequence, mask) in enumerate(zip(SEQUENCES, rollouts.reasoning_mask, strict=True)):
        expected, p, rows = brute_force(model, sequence, 39, free_below)
        ran += len(rows)
        torch.testing.assert_close(importance[i, mask], expected.double(), rtol=0, atol=1e-6)
        torch.testing.assert_close(weighted[i, mask], (expected * (1 - p)).double(), rtol=0, atol=1e-6)
    assert (ran < sum(len(s["reasoning"]) for s in SEQUENCES)) == (free_below < 0.1)


def test_draws_are_averaged():
    """No draw of a seed is one of the next seed's, by which the lab judges how far scores hang on the draws."""
    model, rollouts = gpt2().eval(), rollouts_of(SEQUENCES)
    several = TotalEffect(num_draws=3, seed=5)(model, rollouts)
    single = [TotalEffect(seed=seed)(model, rollouts) for seed in (5, derive_seed(5, 1), derive_seed(5, 2))]
    assert not torch.allclose(single[0], single[1])
    torch.testing.assert_close(several, torch.stack(single).mean(0), rtol=1e-9, atol=1e-12)


def test_a_screened_off_decision_ranks_first(relaying_model):
    """Decision, restatement, answer: the answer is read from the restatement alone, which repeats the decision."""
    model, rollouts, decision = relaying_model
    rows = torch.arange(len(rollouts))
    total = TotalEffect()(model, rollouts)
    assert (total.argmax(1) == decision).all()
    assert total[rows, decision].median() > 0.5  # not of all: now and then the token in its place is no key
    direct = OarP(fill="model_sample")(model, rollouts)
    assert (direct.argmax(1) != decision).all()
    assert (direct[rows, decision] < 0.05 * direct.amax(1)).all()


def test_cost_is_counted():
    """One row: the clean pass, the pass of the fill, and one counterfactual for each token."""
    rollouts = rollouts_of([{"before": [1, 2], "reasoning": [3, 4, 5], "answer": [6], "tail": [7, 8, 9, 10]}])
    for fill, tokens in (("pad", 5 + 3 * 3), ("model_sample", 5 + 3 * 3 + 5)):  # padded to the longest suffix
        scorer = TotalEffect(fill=fill, free_below=1.0)
        scorer(gpt2(), rollouts)
        assert scorer.metrics == {"forward_equivalents": tokens / 10}


def test_errors_name_the_key():
    with pytest.raises(ValueError, match=r"scorer\.num_draws must be >= 1, got 0"):
        TotalEffect(num_draws=0)
    with pytest.raises(ValueError, match=r"scorer\.fill must be one of .* got 'zero'"):
        TotalEffect(fill="zero")
