"""Which tokens come first: by score, equal ones by chance, whatever is beside them."""

from __future__ import annotations

import math

import torch
from support.toy import padded, rollouts_of

from oar_lightning.lab.removal.orders import first_share, ranks, toward_outcome

ROWS = [
    {"before": [1], "reasoning": list(range(2, 12)), "answer": [12]},
    {"before": [1, 2], "reasoning": [3, 4, 5], "answer": [6]},
]


def on(rollouts, *rows):
    scores = torch.zeros(rollouts.token_ids.shape)
    for i, row in enumerate(rows):
        scores[i, rollouts.reasoning_mask[i]] = torch.tensor(row)
    return scores


def test_the_largest_score_ranks_first_and_what_is_no_number_last() -> None:
    rollouts = rollouts_of(ROWS)
    scores = on(rollouts, [0.0, 3.0, -1.0, 9.0, 2.0, 8.0, math.inf, 1.0, math.nan, 4.0], [0.1, 0.3, 0.2])
    found = ranks(scores, rollouts)
    assert found[0].tolist() == [7, 4, 8, 1, 5, 2, 0, 6, 9, 3]
    assert found[1, :3].tolist() == [2, 0, 1]
    assert (found[1, 3:] >= 3).all()
    top = first_share(found, [10, 3], 0.2)
    assert top[0].nonzero().flatten().tolist() == [3, 6]
    assert top[1].nonzero().flatten().tolist() == [1], "rounded up"
    assert first_share(found, [10, 3], 0.07 * 10).sum(1).tolist() == [7, 3], "0.7 of 10 are 7, though the product is above"
    assert first_share(found, [10, 3], 1.0).sum(1).tolist() == [10, 3]
    assert not first_share(found, [10, 3], 0.0).any()


def test_equal_scores_are_in_a_random_order_that_hangs_on_the_text_alone() -> None:
    rollouts = rollouts_of(ROWS)
    zeros = on(rollouts, [0.0] * 10, [0.0] * 3)
    found = ranks(zeros, rollouts)
    assert torch.equal(found, ranks(zeros, rollouts))
    more = padded(rollouts, 2, 3)
    assert torch.equal(found, ranks(torch.zeros(more.token_ids.shape), more))
    alone = rollouts_of(ROWS[1:])
    assert torch.equal(found[1, :3], ranks(torch.zeros(alone.token_ids.shape), alone)[0])
    places = torch.stack([ranks(zeros, rollouts, seed)[0] for seed in range(300)]).double().mean(0)
    assert (places - 4.5).abs().max() < 4 * math.sqrt(99 / 12 / 300)


def test_a_score_with_a_sign_counts_toward_the_completions_own_outcome() -> None:
    scores = torch.tensor([[1.0, -2.0], [1.0, -2.0], [1.0, -2.0]])
    assert toward_outcome(scores, False, torch.tensor([1.0, -1.0, 0.0])).equal(scores)
    found = toward_outcome(scores, True, torch.tensor([0.5, -0.5, 0.0]))
    assert found.tolist() == [[1.0, -2.0], [-1.0, 2.0], [1.0, 2.0]]
