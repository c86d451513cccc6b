"""Blocks of batches: each holds its own, and no batch is in two."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.fixtures import TASK, ConstantReward, LengthReward, make_module, make_stage, tiny_policy

from oar_lightning.common.randomness import derive_seed
from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import BilevelGate, SignedGate
from oar_lightning.credit.scorers import Position, Uniform
from oar_lightning.data.chain.task import ChainProblems
from oar_lightning.data.stream import ProblemStream
from oar_lightning.lab.gradients.batch import Coordinates, policy_gradients
from oar_lightning.lab.gradients.blocks import Arm, blocks_of, sample_block
from oar_lightning.lab.gradients.sums import added
from oar_lightning.objective.advantage import group_advantages
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.types import Credit, Rollouts

BUDGET = TokenBudget("")


@pytest.fixture(scope="module")
def sampled():
    policy = tiny_policy()
    module = make_module(policy, update=UpdatePlan(problems=2, group_size=2))
    problems = tuple(ChainProblems(TASK)[i] for i in range(5))
    stage = make_stage(policy, LengthReward())
    rollouts = stage(policy.model, problems, 2, module.method.sampling, range(5))
    advantages = group_advantages(rollouts.reward_terms, torch.ones(1), 2)
    return policy.model, stage, module.method, dataclasses.replace(rollouts, advantages=advantages)


def credits_of(model: object, rollouts: Rollouts) -> dict[str, Credit]:
    arms = {"grpo": Uniform(), "late": Position("late")}
    return {name: assign_credit(model, rollouts, scorer, BilevelGate()) for name, scorer in arms.items()}


def test_a_problems_completions_are_one_batch(sampled) -> None:
    model, _, method, rollouts = sampled
    credit, coordinates = credits_of(model, rollouts), Coordinates.of(model)
    units = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    blocks = blocks_of(model, rollouts, credit, units, 2, method.loss, 12, BUDGET, coordinates, ["grpo"])
    assert [b.batches for b in blocks] == [3, 2]
    batches = []
    for unit in range(5):
        rows = torch.tensor([2 * unit, 2 * unit + 1])
        part = rollouts.select(rows)
        own = {name: c.select(rows, rollouts.columns(rows)) for name, c in credit.items()}
        batches.append(policy_gradients(model, part, own, method.loss, 12, BUDGET, coordinates))
    g = torch.stack(batches)
    assert (g.abs().sum((1, 2)) > 0).sum() >= 2
    whole = added(blocks)
    torch.testing.assert_close(whole.total, g.sum(0))
    torch.testing.assert_close(whole.squares, g.square().sum(0))
    torch.testing.assert_close(whole.products[0], (g * g[:, :1]).sum(0))
    few = blocks_of(model, rollouts, credit, [0] * 10, 4, method.loss, 12, BUDGET, coordinates)
    assert [b.batches for b in few] == [1], "no empty blocks"


def test_blocks_share_neither_problems_nor_draws(sampled) -> None:
    model, stage, method, _ = sampled
    asked, drawn = [], []

    class Watched:
        rewards = stage.rewards

        def __call__(self, model, problems, group_size, sampling, seeds, step=0):
            asked.append(list(problems))
            drawn.extend(seeds)
            return stage(model, problems, group_size, sampling, seeds, step)

    arms, coordinates = {"grpo": Arm(Uniform(), BilevelGate())}, Coordinates.of(model, 100)
    for block in range(2):
        sample_block(model, Watched(), method, ChainProblems(TASK), arms, block, 2, BUDGET, coordinates)
    in_order = ProblemStream(ChainProblems(TASK), 0).take(8)
    assert asked == [in_order[i : i + 2] for i in range(0, 8, 2)]
    assert len({p.id for p in in_order}) == 8
    assert drawn == [derive_seed(0, "headroom", block, batch, i) for block in (0, 1) for batch in (0, 1) for i in (0, 1)]
    assert len(set(drawn)) == 8


def test_a_sampled_block_is_the_same_alone(sampled) -> None:
    model, stage, method, _ = sampled
    arms = {"grpo": Arm(Uniform(), BilevelGate())}
    coordinates = Coordinates.of(model, 2000)

    def block(number: int):
        return sample_block(model, stage, method, ChainProblems(TASK), arms, number, 2, BUDGET, coordinates, ["grpo"])

    first, second, again = block(0), block(1), block(1)
    assert torch.equal(second.sums.total, again.sums.total)
    assert not torch.equal(first.sums.total, second.sums.total)
    assert second.sums.batches == 2
    assert {key: len(values) for key, values in second.facts.items()} == {"reward": 2, "tokens": 2, "silent groups": 2}


def test_groups_of_equal_rewards_have_no_gradient_whatever_a_gate_adds_to_their_advantages(sampled) -> None:
    model, _, method, _ = sampled
    stage, coordinates = make_stage(tiny_policy(), ConstantReward()), Coordinates.of(model, 2000)
    arms = {"added": Arm(Position("late"), SignedGate(combine="add"))}
    block = sample_block(model, stage, method, ChainProblems(TASK), arms, 0, 2, BUDGET, coordinates, ["added"])
    assert block.facts["silent groups"] == [1.0, 1.0]
    assert not block.sums.total.any()
