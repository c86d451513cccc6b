"""What the store holds is not asked for again, and what it holds is what was said."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.removal import SCORABLE, sequences_as_rollouts
from support.toy import padded

from oar_lightning.lab import kept
from oar_lightning.lab.kept import KeptContinuations, KeptOutcome
from oar_lightning.lab.removal.sets import Sets
from oar_lightning.lab.store import Store
from oar_lightning.types import Continued, Prefix


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache.db", "a policy")


class Sampler:
    def __init__(self) -> None:
        self.asked = []

    def __call__(self, model, rollouts, prefixes, samples, seed, greedy=False) -> Continued:
        self.asked.append(list(prefixes))
        values = [
            [float(rollouts.token_ids[row, column - 1]) + seed + k / 8 for k in range(samples)] for row, column in prefixes
        ]
        return Continued(torch.tensor(values), len(prefixes) * samples, 7)


def test_continuations_are_sampled_once_for_each_prefix_seed_and_number(store) -> None:
    rollouts, sampler = sequences_as_rollouts(), Sampler()
    continuations = KeptContinuations(sampler, store, 16)
    one, other, third = Prefix(0, 9), Prefix(1, 10), Prefix(1, 11)
    first = continuations(None, rollouts, [one, other], 3, 5)
    assert (first.sampled, first.tokens) == (6, 7)
    again = continuations(None, padded(rollouts, 2, 1), [Prefix(1, 13), Prefix(0, 11), Prefix(1, 12)], 3, 5)
    assert sampler.asked[1] == [Prefix(1, 13)], "the others are there, whatever the padding"
    assert torch.equal(again.rewards[1:], first.rewards[[0, 1]])
    assert torch.equal(continuations(None, rollouts, [third], 3, 5).rewards, again.rewards[:1])
    assert (again.sampled, continuations(None, rollouts, [one, other], 3, 5).sampled) == (3, 0)
    for samples, seed in ((2, 5), (3, 6)):
        assert continuations(None, rollouts, [one], samples, seed).sampled == samples
    asked = dataclasses.replace(rollouts.problems[0], answer="another")
    judged = dataclasses.replace(rollouts, problems=(asked, *rollouts.problems[1:]))
    assert continuations(None, judged, [one], 3, 5).sampled == 3, "another gold answer judges otherwise"
    changed = dataclasses.replace(rollouts, token_ids=rollouts.token_ids.clone())
    changed.token_ids[0, 8] = 1
    assert continuations(None, changed, [one], 3, 5).sampled == 3
    assert continuations(None, rollouts, [], 3, 5).rewards.shape == (0, 3)


def test_continuations_of_another_limit_are_others(store) -> None:
    rollouts, sampler = sequences_as_rollouts(), Sampler()
    length = int(rollouts.response_mask[0].sum())
    for limit, sampled in ((length, 3), (length - 1, 0), (length + 1, 3), (length, 0)):
        kept_so_far = KeptContinuations(sampler, store, limit)
        assert kept_so_far(None, rollouts, [Prefix(0, 9)], 3, 5).sampled == sampled, "a longer completion's limit is its length"


def test_outcomes_are_computed_once_for_each_text_set_and_fill(store, monkeypatch) -> None:
    monkeypatch.setattr(kept, "UNIT", 4)
    rollouts, ran = sequences_as_rollouts(), []

    def outcome(sets, fill):
        ran.append(sets.row.tolist())
        if len(ran) == 3:
            raise KeyboardInterrupt
        return sets.row * 100.0 + sets.removed.sum(1) + len(fill) / 7

    rows = torch.tensor(SCORABLE).repeat(4)
    removed = torch.zeros(12, 7, dtype=torch.bool)
    for i in range(12):
        removed[i, : i // 3] = True
    sets = Sets(rows, removed)
    known = KeptOutcome(outcome, rollouts, store, "f")
    with pytest.raises(KeyboardInterrupt):
        known(sets, "pad")
    assert [len(unit) for unit in ran] == [4, 4, 4]
    assert ran[0] == [0, 0, 0, 0], "those of one text together"
    found = known(sets, "pad")
    assert len(ran) == 4, "of three units two were kept"
    expected = rows * 100.0 + removed.sum(1) + 3 / 7
    torch.testing.assert_close(found, expected.double())

    more = padded(rollouts, 1, 2)
    wider = Sets(rows, torch.nn.functional.pad(removed, (0, 9)))
    assert torch.equal(KeptOutcome(outcome, more, store, "f")(wider, "pad"), found)
    assert len(ran) == 4
    KeptOutcome(outcome, rollouts, store, "another")(sets, "pad")
    assert len(ran) == 7
    known(sets, "random_token")
    assert len(ran) == 10
