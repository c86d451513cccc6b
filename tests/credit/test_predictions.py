"""Numbers of predictions against a softmax by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.toy import gpt2, rollouts_of

from oar_lightning.credit.scorers.forward_free import Probability
from oar_lightning.policy.language_model import evaluating

SEQUENCES = [
    {"before": [3, 4, 5, 6], "reasoning": [8, 9, 10, 11, 12], "conclude": [11], "answer": [12, 13, 14], "tail": [1]},
    {"before": [3, 4, 5, 6], "reasoning": [15, 16, 17, 18, 19, 20, 21], "answer": [22]},
    {"before": [23, 24], "reasoning": [25], "conclude": [26, 27], "answer": [28, 29], "tail": [31, 32]},
    {"before": [23, 24], "reasoning": [33, 33, 34, 33, 35], "conclude": [36], "answer": [37, 38]},
]


@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_numbers_are_those_of_the_softmax_that_was_drawn_from(temperature: float) -> None:
    model, rollouts = gpt2(), dataclasses.replace(rollouts_of(SEQUENCES), temperature=temperature)
    found = Probability().predictions(model, rollouts)
    for row in range(len(rollouts)):
        used = rollouts.attention_mask[row]
        with evaluating(model), torch.no_grad():
            logits = model(rollouts.token_ids[row, used][None]).logits[0].double().numpy()
        first = int(used.nonzero()[0])
        for column in rollouts.response_mask[row].nonzero().flatten().tolist():
            z, y = logits[column - first - 1] / temperature, int(rollouts.token_ids[row, column])
            p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
            expected = (np.log(p[y]), -(p * np.log(p)).sum(), (p**2).sum(), z[y], z.max() - np.log(p.max()) - z.mean())
            assert [float(x[row, column]) for x in found] == pytest.approx(expected, rel=1e-6)
        assert not any(x[row, ~rollouts.response_mask[row]].any() for x in found)
