"""Removal with the rest as written, against one plain forward pass for each set."""

from __future__ import annotations

import pytest
import torch
from support.removal import SCORABLE, SEQUENCES
from support.toy import gpt2

from oar_lightning.credit.scorers import OarP, ProbeSchedule
from oar_lightning.credit.scorers.oar_p.fills import FILLS
from oar_lightning.lab.removal.kept_reward import fill_ids
from oar_lightning.lab.removal.own_answer import OwnAnswer
from oar_lightning.lab.removal.sets import Sets, evaluate
from oar_lightning.policy.token_budget import TokenBudget

BUDGET = TokenBudget("")


def brute_force(model, sequence, removed, fills, mean):
    """The answer's log-probability with the embeddings of one unpadded text replaced; `fills`: ids, or None for the mean."""
    ids = [t for part in ("before", "reasoning", "conclude", "answer") for t in sequence.get(part, [])]
    table = model.get_input_embeddings().weight
    embeds = table[torch.tensor(ids)].clone()
    for j, gone in enumerate(removed):
        if gone:
            embeds[len(sequence["before"]) + j] = table.mean(0) if mean else table[fills[j]]
    logp = model(inputs_embeds=embeds[None]).logits[0].log_softmax(-1)
    end = len(ids)
    return sum(logp[i - 1, ids[i]] for i in range(end - len(sequence["answer"]), end))


def all_sets(rollouts):
    """Ten random sets of each row that can be scored, none and all of its tokens among them."""
    rng = torch.Generator().manual_seed(0)
    rows, removed = [], []
    for row in SCORABLE:
        count = len(SEQUENCES[row]["reasoning"])
        sets = torch.rand(10, 7, generator=rng) < 0.5
        sets[0], sets[1] = False, True
        sets[:, count:] = False
        rows += [row] * 10
        removed.append(sets)
    order = torch.randperm(30, generator=rng)
    return Sets(torch.tensor(rows)[order], torch.cat(removed)[order])


@pytest.mark.parametrize(("fill", "tokens"), [("pad", 1), *((fill, 60) for fill in FILLS), ("model_sample", None)])
def test_brute_force(rollouts, fill, tokens) -> None:
    model = gpt2().eval()
    sets = all_sets(rollouts)
    found = OwnAnswer(model, rollouts, TokenBudget("", tokens), seed=5)(sets, fill)
    fills = fill_ids(model, rollouts, torch.tensor(SCORABLE), fill, 5, BUDGET)
    with torch.no_grad():
        expected = [
            brute_force(model, SEQUENCES[row], gone, fills[row].tolist(), fill == "mean_embedding")
            for row, gone in zip(sets.row.tolist(), sets.removed.tolist(), strict=True)
        ]
    assert torch.stack(expected).std() > 0.1
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-10)


def test_single_tokens_are_oar_ps_scores(rollouts) -> None:
    """With the joint probe, which is the mean over the answer's tokens; the fall's size is the score."""
    model = gpt2().eval()
    scores = OarP(ProbeSchedule("answer_joint"), fill_token_id=39)(model, rollouts)
    outcome = OwnAnswer(model, rollouts, BUDGET)
    for row, tokens in ((0, 2), (1, 1), (3, 3)):
        count = len(SEQUENCES[row]["reasoning"])
        one = torch.zeros(count + 1, 7, dtype=torch.bool)
        one[1:, :count] = torch.eye(count, dtype=torch.bool)
        values = outcome(Sets(torch.full((count + 1,), row), one), "pad")
        falls = (values[0] - values[1:]).abs() / tokens
        torch.testing.assert_close(falls, scores[row, rollouts.reasoning_mask[row]], rtol=0, atol=1e-10)


def test_equal_sets_are_run_once_and_none_is_no_error(rollouts) -> None:
    ran = []

    def outcome(sets, fill):
        ran.append(len(sets.row))
        return sets.row * 10.0 + sets.removed.sum(1)

    sets = all_sets(rollouts)
    twice = Sets(sets.row.repeat(2), sets.removed.repeat(2, 1))
    found = evaluate(outcome, twice, "pad")
    assert found.tolist() == (twice.row * 10.0 + twice.removed.sum(1)).tolist()
    assert ran[0] <= 30
    empty = Sets(sets.row[:0], sets.removed[:0])
    assert len(evaluate(OwnAnswer(gpt2(), rollouts, BUDGET), empty, "pad")) == 0
