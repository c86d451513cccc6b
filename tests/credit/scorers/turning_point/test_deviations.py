"""Deviations and their gaps, against numpy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.greedy_values import Greedy, drawn
from support.toy import gpt2, padded

from oar_lightning.credit.scorers.turning_point.deviations import deviations
from oar_lightning.policy.language_model import evaluating, prediction_states


@pytest.mark.parametrize("kept", [False, True])
def test_deviations_are_those_of_the_softmax(kept: bool) -> None:
    model, rollouts = gpt2(), padded(drawn(Greedy({})), 2, 1)
    if kept:
        with torch.no_grad(), evaluating(model):
            states = prediction_states(model, rollouts.attention_mask, rollouts.token_ids)
        rollouts = dataclasses.replace(rollouts, prediction_states=states)
    found = deviations(model, rollouts)
    with torch.no_grad(), evaluating(model):
        for row in range(len(rollouts)):
            real = rollouts.attention_mask[row]
            logits = model(rollouts.token_ids[row, real][None]).logits[0].double().numpy()
            p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
            ids, columns = rollouts.token_ids[row, real].numpy(), real.nonzero().flatten().numpy()
            expected = [
                (columns[i], p[i - 1].argmax(), np.log(p[i - 1].max() / p[i - 1, ids[i]]))
                for i in range(1, len(ids))
                if rollouts.response_mask[row, columns[i]] and p[i - 1].argmax() != ids[i]
            ]
            assert [(d.column, d.likely) for d in found[row]] == [(column, likely) for column, likely, _ in expected]
            assert [d.gap for d in found[row]] == pytest.approx([gap for _, _, gap in expected], abs=1e-6)


def test_of_two_tokens_that_are_as_likely_greedy_decoding_takes_one() -> None:
    """Ties are common in bfloat16: the other one is a deviation, too, of no gap."""
    model, rollouts = gpt2(), drawn(Greedy({}))
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    found = deviations(model, rollouts)
    for row, of_row in enumerate(rollouts.response_mask):
        columns = [c for c in of_row.nonzero().flatten().tolist() if int(rollouts.token_ids[row, c]) != 0]
        assert [(d.column, d.likely, d.gap) for d in found[row]] == [(column, 0, 0.0) for column in columns]
    assert any(found)
