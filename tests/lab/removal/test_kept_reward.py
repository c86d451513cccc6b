"""Removal with what follows sampled anew: what is asked of the engine, and what is made of its rewards."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from support.fixtures import make_stage, tiny_policy
from support.removal import SCORABLE, Copier
from support.toy import gpt2, rollouts_of

from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.lab.removal.kept_reward import KeptReward, embedded_as_mean, fill_ids, placeholder
from oar_lightning.lab.removal.sets import Sets
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.rollout import SamplingConfig
from oar_lightning.rollout.continuations import Continuer
from oar_lightning.types import Continued

BUDGET = TokenBudget("")


class Fake:
    """A policy that goes on by copying: it gets the reward of the row if its key is in the prefix, and the other if not."""

    def __init__(self, keys, flip=0.0) -> None:
        self.keys, self.asked, self.flip = keys, [], flip

    def __call__(self, model, rollouts, prefixes, samples, seed, greedy=False) -> Continued:
        rewards = torch.zeros(len(prefixes), samples)
        for i, (row, column) in enumerate(prefixes):
            before = rollouts.attention_mask[row, :column]
            ids = rollouts.token_ids[row, :column][before].tolist()
            self.asked.append((tuple(ids), seed))
            kept = any(k in ids for k in self.keys)
            rewards[i] = rollouts.rewards[row] if kept else 1 - rollouts.rewards[row]
            rewards[i, : int(self.flip * samples)] = math.nan
        return Continued(rewards, len(prefixes) * samples, 0)


def test_the_total_effect_of_a_planted_key_is_all_there_is(planted) -> None:
    """Of right and of wrong completions. Before the key stands in the text, nothing that is written is worse than another."""
    rollouts, places = planted
    fake = Fake(range(3, 7), flip=0.5)
    kept = KeptReward(Copier(), rollouts, fake, BUDGET, samples=4)
    wanted = torch.ones(len(rollouts), 5, dtype=torch.bool)
    wanted[0, 2] = False
    effects = kept.total_effects(wanted, ["pad"])["pad"]
    expected = torch.zeros(len(rollouts), 5, dtype=torch.float64).scatter(1, places[:, None], 1.0)
    expected[0, 2] = math.nan
    torch.testing.assert_close(effects, expected, equal_nan=True)
    assert len(fake.asked) == 2 * (5 * len(rollouts) - 1)


def test_prefixes_hold_the_replaced_tokens_and_end_after_them(rollouts) -> None:
    fake = Fake([])
    kept = KeptReward(gpt2(), rollouts, fake, BUDGET, samples=2)
    wanted = torch.zeros(4, 7, dtype=torch.bool)
    wanted[0, 3] = wanted[1, 0] = True
    kept.total_effects(wanted, ["pad"])
    written = {(3, 4, 5, 6, 7, 8, 9, 10, 4), (14, 15)}
    replaced = {(3, 4, 5, 6, 7, 8, 9, 10, 39), (14, 39)}
    assert {ids for ids, _ in fake.asked} == written | replaced
    fake.asked.clear()
    sets = Sets(
        torch.tensor([1, 0]), torch.tensor([[True, False, True, False, False, False, True], [False, True] + [False] * 5])
    )
    values = kept(sets, "pad")
    assert {ids for ids, _ in fake.asked} == {(14, 39, 16, 39, 18, 19, 20, 39), (3, 4, 5, 6, 7, 8, 39, 10, 4, 17)}
    assert values.tolist() == [0.0, 0.0], "no key: the reward is always another"


def test_fills_are_tokens_of_their_kind(rollouts) -> None:
    model = gpt2().eval()
    rows = torch.tensor(SCORABLE)
    for fill in ("pad", "mean_embedding"):
        assert (fill_ids(model, rollouts, rows, fill, 0, BUDGET) == 39).all()
    random = fill_ids(model, rollouts, rows, "random_token", 0, BUDGET)
    assert not torch.equal(random, fill_ids(model, rollouts, rows, "random_token", 1, BUDGET))
    sampled = fill_ids(model, rollouts, rows, "model_sample", 0, TokenBudget("", 1))
    assert torch.equal(sampled, fill_ids(model, rollouts, rows, "model_sample", 0, BUDGET)), "whatever the passes"
    own = rollouts.token_ids[1, rollouts.reasoning_mask[1]]
    assert (sampled[1] != own).all(), "what might have been written instead"


def test_the_mean_embedding_is_read_in_place_of_the_pad_token(rollouts) -> None:
    model = gpt2().eval()
    ids = torch.tensor([[5, 39, 7]])
    table = model.get_input_embeddings().weight
    expected = table[ids].clone()
    expected[0, 1] = table.mean(0)
    with torch.no_grad(), embedded_as_mean(model, 39) as calls:
        torch.testing.assert_close(model(ids).logits, model(inputs_embeds=expected).logits)
        assert calls == [1]
    assert torch.equal(model.get_input_embeddings()(ids), table[ids]), "and afterwards no more"
    assert placeholder(model, rollouts) == 39
    assert placeholder(model, dataclasses.replace(rollouts, pad_token_id=16)) == 39, "the last that no text holds"
    full = rollouts_of([{"before": list(range(20)), "reasoning": list(range(20, 39)), "answer": [39]}], pad_token_id=39)
    with pytest.raises(ValueError, match="hold the whole vocabulary; leave mean_embedding out"):
        placeholder(model, full)
    wanted = torch.zeros(4, 7, dtype=torch.bool)
    wanted[0, 0] = True
    with pytest.raises(ValueError, match="samples from a copy of the policy"):
        KeptReward(model, rollouts, Fake([]), BUDGET).total_effects(wanted, ["mean_embedding"])
    with pytest.raises(ValueError, match="samples must be >= 1, got 0"):
        KeptReward(model, rollouts, Fake([]), BUDGET, samples=0)


def test_with_a_true_engine_the_draws_hang_on_the_prefix_alone() -> None:
    policy = tiny_policy()
    stage = make_stage(policy, LastTokens())
    sampling = SamplingConfig(max_new_tokens=10)
    problems = tuple(ChainProblems(ChainTask())[i] for i in range(2))
    rollouts = stage(policy.model, problems, 2, sampling, [1, 2])
    kept = KeptReward(policy.model, rollouts, Continuer(stage, sampling), BUDGET, samples=4)
    mask = rollouts.reasoning_mask.sum(1, keepdim=True)
    wanted = torch.arange(int(mask.max())) < mask
    fills = ["pad", "mean_embedding", "random_token", "model_sample"]
    both = kept.total_effects(wanted, fills)
    assert all(not e[wanted].isnan().any() for e in both.values())
    assert len({tuple(e[wanted].tolist()) for e in both.values()}) == 4, "four fills, four effects"
    part = wanted.clone()
    part[1:] = False
    for fill, alone in kept.total_effects(part, fills[::-1]).items():
        assert torch.equal(alone[part], both[fill][part])


class LastTokens:
    """A reward that varies: a function of the text."""

    def __call__(self, problems, completions):
        return [float(sum(map(ord, c.text)) % 2) for c in completions]
