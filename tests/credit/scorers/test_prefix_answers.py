"""An answer's likelihood after prefixes against one plain pass of the model for each."""

from __future__ import annotations

import pytest
import torch
from support.toy import gpt2, qwen2_golden, rollouts_of

from oar_lightning.credit.scorers.prefix_answers import PrefixReader, Question
from oar_lightning.policy.decoder import choose_decoder
from oar_lightning.policy.language_model import can_share_prefixes, evaluating, scoring_mode
from oar_lightning.policy.token_budget import TokenBudget

SEQUENCES = [
    {"before": [3, 4, 5, 6], "reasoning": [8, 9, 10, 11, 12], "answer": [12, 13]},
    {"before": [14], "reasoning": [15, 16, 17], "answer": [22]},
    {"before": [3, 4, 5, 6], "reasoning": [8, 9], "answer": [7]},
]
QUESTIONS = [
    Question(0, (4, 6, 9), (17,), (12, 13, 14)),
    Question(1, (4, 5, 7), (), (5,)),
    Question(2, (4, 6), (9, 8, 7), (6, 6)),
    Question(0, (4, 9), (2, 3), (4,)),
]


def by_hand(model, rollouts, temperature):
    """Mean log-probability and entropy of each answer, from a pass over each prefix with what follows it."""
    out = []
    for row, ends, cue, answer in QUESTIONS:
        first = int(rollouts.attention_mask[row].long().argmax())
        beliefs = []
        for end in ends:
            ids = [*rollouts.token_ids[row, first:end].tolist(), *cue, *answer]
            log_p = (model(torch.tensor([ids])).logits[0].double() / temperature).log_softmax(-1)[-len(answer) - 1 : -1]
            entropy = -(log_p.exp() * log_p).sum(-1)
            beliefs.append((float(log_p[range(len(answer)), list(answer)].mean()), float(entropy.mean())))
        out.append(beliefs)
    return out


@pytest.mark.parametrize(("budget", "temperature"), [(1, 1.0), (40, 1.0), (10**6, 1.0), (10**6, 2.0)])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("make", [gpt2, qwen2_golden], ids=["gpt2", "qwen2"])
def test_beliefs_are_those_of_plain_passes(make, share, budget, temperature) -> None:
    model, rollouts = make(), rollouts_of(SEQUENCES)
    first = rollouts.attention_mask.long().argmax(1)
    with torch.no_grad(), scoring_mode(model):
        assert can_share_prefixes(model)
        reader = PrefixReader(model, choose_decoder(model), TokenBudget("x", budget), share, temperature)
        beliefs, _ = reader.read(rollouts.token_ids, first, QUESTIONS)
    with torch.no_grad(), evaluating(model):
        expected = by_hand(model, rollouts, temperature)
    for belief, values in zip(beliefs, expected, strict=True):
        actual = list(zip(belief.logprob.tolist(), belief.entropy.tolist(), strict=True))
        assert actual == [pytest.approx(value, abs=1e-6) for value in values]


def test_shared_prefixes_cost_about_one_pass() -> None:
    model = gpt2()
    long = rollouts_of([{"before": [1, 2, 3], "reasoning": list(range(4, 39)), "answer": [1]}])
    ends = tuple(range(3, 39, 5))
    question = Question(0, ends, (2,), (1,))
    with torch.no_grad(), scoring_mode(model):
        costs = [
            PrefixReader(model, choose_decoder(model), TokenBudget("x"), share, 1.0).read(
                long.token_ids, torch.tensor([0]), [question]
            )[1]
            for share in (True, False)
        ]
    assert costs[0] == (ends[-1] - 1) + len(ends) * 2, "the text but for a token, and of each prefix its last token and the cue"
    assert costs[1] > 2 * costs[0]
