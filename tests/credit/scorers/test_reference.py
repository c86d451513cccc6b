"""The fast scorers against the definition: one completion at a time, whole sequences, full logits."""

from __future__ import annotations

import copy

import pytest
import torch
from support.toy import golden, padded, rollouts_of

from oar_lightning.credit.scorers import OarG, OarP, ProbeSchedule
from oar_lightning.credit.scorers.probes import PROBES
from oar_lightning.credit.scorers.reference import ReferenceOarG, ReferenceOarP


def batch():
    """The golden sequences in a vocabulary of 40."""
    sequences = []
    for number, sequence in enumerate(golden("oar_p")["sequences"]):
        parts = {k: [4 + i % 36 for i in v] for k, v in sequence.items() if isinstance(v, list)}
        sequences.append(sequence | parts | {"tail": [7, 9, 11][: number % 4]})
    return padded(rollouts_of(sequences), left=2, right=1)


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("share", [False, True])
def test_oar_p_in_float64(model64, probe, share):
    rollouts = batch()
    expected = ReferenceOarP(ProbeSchedule(probe), fill_token_id=3)(model64, rollouts)
    actual = OarP(ProbeSchedule(probe), 50, fill_token_id=3, share_prefixes=share)(model64, rollouts)
    assert float(expected.max()) > 1e-3
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("probe", PROBES)
def test_oar_g_in_float64(model64, probe):
    rollouts = batch()
    expected = ReferenceOarG(ProbeSchedule(probe), noise_std=0.05, seed=4)(model64, rollouts)
    actual = OarG(ProbeSchedule(probe), noise_std=0.05, seed=4, token_budget=60)(model64, rollouts)
    assert float(expected.max()) > 1e-6
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-12)


def test_oar_p_in_float32_keeps_values_and_ranks(model64):
    model, rollouts = copy.deepcopy(model64).float(), batch()
    expected = ReferenceOarP(fill_token_id=3)(model, rollouts)
    actual = OarP(fill_token_id=3)(model, rollouts)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    for row in range(len(rollouts)):
        mask = rollouts.reasoning_mask[row]
        apart = expected[row, mask].sort().values.diff() > 1e-4  # ties may turn
        order = expected[row, mask].argsort()
        assert (actual[row, mask][order].diff()[apart] > 0).all()
