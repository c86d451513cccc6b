"""A batch's gradient under each estimator: that of training, in whatever passes it is computed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from support.fixtures import LengthReward, make_module, make_stage, tiny_policy
from support.toy import rollouts_of

from oar_lightning.common.randomness import derive_seed
from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import BilevelGate
from oar_lightning.credit.gates.select import SelectGate
from oar_lightning.credit.scorers import Entropy, Position, Uniform
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.lab.gradients.batch import Coordinates, policy_gradients
from oar_lightning.objective.advantage import group_advantages
from oar_lightning.objective.loss import LossConfig
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.slots import Slot, UpdatePlan

CASES = [(Uniform(), BilevelGate()), (Position("late"), BilevelGate()), (Entropy(), SelectGate(share=0.3, region="reasoning"))]


@pytest.mark.parametrize(("scorer", "gate", "temperature"), [(*case, 1.0) for case in CASES] + [(*CASES[0], 0.5)])
def test_a_methods_gradient_is_that_of_training(scorer: Any, gate: Any, temperature: float) -> None:
    policy = tiny_policy()
    update = UpdatePlan(problems=2, group_size=4, microbatches=1)
    module: PolicyOptimization = make_module(policy, scorer, LengthReward(), update, gate=gate, temperature=temperature)
    problems = tuple(ChainProblems(ChainTask())[i] for i in range(2))
    module.experience = module.collector.collect(problems, 0).experience
    loss = module.training_step(Slot(problems=problems, rollout=0, inner_epoch=0, minibatch=0, microbatch=0), 0)
    assert loss is not None
    loss.backward()
    expected = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in policy.model.parameters()])
    assert expected.abs().sum() > 0
    before = [None if p.grad is None else p.grad.clone() for p in policy.model.parameters()]

    method, stage = module.method, make_stage(policy, LengthReward())
    rollouts, credit = module.experience.rollouts, module.experience.credit
    again = stage(policy.model, problems, 4, method.sampling, [derive_seed(0, "rollout", 0, i) for i in range(2)], 0)
    assert torch.equal(again.token_ids, rollouts.token_ids)
    coordinates = Coordinates.of(policy.model)
    whole, chunked = (
        policy_gradients(
            policy.model, rollouts, {"method": credit, "again": credit}, method.loss, 12, TokenBudget("", tokens), coordinates
        )
        for tokens in (None, 100)
    )
    torch.testing.assert_close(whole[0], expected, rtol=1e-4, atol=1e-7)
    assert torch.equal(whole[0], whole[1])
    torch.testing.assert_close(chunked, whole, rtol=1e-4, atol=1e-7)
    for parameter, grad in zip(policy.model.parameters(), before, strict=True):
        assert (parameter.grad is None) if grad is None else torch.equal(parameter.grad, grad)


@pytest.mark.parametrize(("times", "weight"), [(1.5, 1.5), (3.0, 2.0)])
def test_what_another_sampler_drew_is_weighed_as_in_training(times: float, weight: float) -> None:
    """A token that the policy gives `times` the sampler's probability counts so many times, at most twice."""
    policy = tiny_policy()
    module = make_module(policy, reward=LengthReward())
    collected = module.collector.collect(tuple(ChainProblems(ChainTask())[i] for i in range(2)), 0).experience
    own = module.collector.detached_logprobs(policy.model, collected.rollouts)
    sampled = (own - math.log(times)) * collected.rollouts.response_mask
    given = dataclasses.replace(collected.rollouts, sampler_logprobs=sampled)
    credit, loss, every = {"grpo": collected.credit}, LossConfig(sampler_ratio_cap=2.0), Coordinates.of(policy.model)
    plain, weighed = (
        policy_gradients(policy.model, rollouts, credit, loss, 12, TokenBudget(""), every)
        for rollouts in (collected.rollouts, given)
    )
    assert plain.abs().sum() > 0
    torch.testing.assert_close(weighed, weight * plain, rtol=1e-4, atol=1e-7)


def test_a_loss_that_depends_on_the_passes_has_no_gradient_of_a_batch() -> None:
    """The gradient of two passes was twice that of one."""
    with pytest.raises(ValueError, match=r"loss\.reduction=bnpo .* set loss\.reduction=dapo"):
        policy_gradients(
            None,
            rollouts_of([{"before": [1], "answer": [2]}]),
            {},
            LossConfig(reduction="bnpo"),
            1,
            TokenBudget(""),
            Coordinates([]),
        )


def test_some_coordinates_are_a_part_of_the_whole() -> None:
    policy = tiny_policy()
    every = Coordinates.of(policy.model)
    assert len(every) == sum(p.numel() for p in policy.model.parameters())
    rollouts = make_stage(policy, LengthReward())(
        policy.model, tuple(ChainProblems(ChainTask())[i] for i in range(2)), 2, make_module(policy).method.sampling, [1, 2]
    )
    advantages = group_advantages(rollouts.reward_terms, torch.ones(1), 2)
    rollouts = dataclasses.replace(rollouts, advantages=advantages)
    credit = {"grpo": assign_credit(policy.model, rollouts, Uniform(), BilevelGate())}
    loss = make_module(policy).method.loss

    def gradients(coordinates: Coordinates) -> torch.Tensor:
        return policy_gradients(policy.model, rollouts, credit, loss, 12, TokenBudget(""), coordinates)

    whole, some = gradients(every), Coordinates.of(policy.model, 3000)
    assert len(some) == 3000
    assert some.index is not None
    assert len(set(some.index.tolist())) == 3000
    last = Coordinates(some.parameters)
    assert len(last) < len(every) / 2
    assert policy.model.get_input_embeddings().weight.data_ptr() not in {p.data_ptr() for p in some.parameters}
    size = len(last)
    assert torch.equal(gradients(last), whole[:, -size:]), "of a tied head there is nothing after them"
    part = gradients(some)
    assert torch.equal(part, whole[:, -size:][:, some.index])
    assert not torch.equal(some.index, Coordinates.of(policy.model, 3000, seed=1).index)

    policy.model.requires_grad_(False)
    assert len(Coordinates.of(policy.model)) == len(every), "of a frozen policy all"
    torch.testing.assert_close(gradients(some), part)
    assert not any(p.requires_grad for p in policy.model.parameters())
    trained = list(policy.model.parameters())[-1].requires_grad_(True)
    assert [id(p) for p in Coordinates.of(policy.model).parameters] == [id(trained)], "adapters alone, where these are trained"
