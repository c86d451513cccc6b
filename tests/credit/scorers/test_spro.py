"""SPRO against numpy, and as GRPO while the policy is the reference."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from support.fixtures import make_module, tiny_policy
from support.toy import rollouts_of

from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import SignedGate
from oar_lightning.credit.scorers import Spro, Uniform
from oar_lightning.objective.loss import LossConfig
from oar_lightning.rollout.assemble import RolloutStage
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.types import MathProblem, Rollouts

SEQUENCES = [
    {"before": [3, 4, 5], "reasoning": [8, 9, 10], "answer": [13], "tail": [1]},
    {"before": [14], "reasoning": [15, 16], "answer": [22]},
    {"before": [3], "reasoning": [8], "answer": [7]},
    {"before": [3], "tail": [8]},
]
PROBLEMS = (MathProblem("1 + 1 =", "2"), MathProblem("2 + 1 =", "3"))


@pytest.fixture
def rollouts() -> Rollouts:
    found = rollouts_of(SEQUENCES, group_size=2, advantages=torch.tensor([1.0, -1.0, 0.3, -0.3]))
    rng = torch.Generator().manual_seed(0)
    old, ref = (-torch.rand(found.token_ids.shape, generator=rng) * found.response_mask for _ in range(2))
    return dataclasses.replace(found, old_logprobs=old, ref_logprobs=ref)


@pytest.mark.parametrize("region", ["response", "reasoning"])
def test_scores_against_numpy(region: str, rollouts: Rollouts) -> None:
    scores = Spro(0.5, region)(None, rollouts)  # type: ignore[arg-type]
    mask = rollouts.response_mask if region == "response" else rollouts.reasoning_mask
    q = (rollouts.old_logprobs - rollouts.ref_logprobs).double().numpy()
    totals = [np.cumsum(0.5 * q[i, mask[i].numpy()]) for i in range(4)]
    for group in ((0, 1), (2, 3)):
        for i in group:
            expected = [r - np.mean([totals[j][t] for j in group if len(totals[j]) > t]) for t, r in enumerate(totals[i])]
            assert scores[i, mask[i]].tolist() == pytest.approx(expected, abs=1e-6)
    assert not scores[~mask].any()
    assert Spro.signed, "some are negative"


def test_a_policy_that_is_its_reference_learns_by_grpo_bit_for_bit(rollouts: Rollouts) -> None:
    same = dataclasses.replace(rollouts, ref_logprobs=rollouts.old_logprobs)
    spro = assign_credit(None, same, Spro(), SignedGate("add"))
    grpo = assign_credit(None, same, Uniform(), SignedGate("add"))
    assert torch.equal(spro.advantages, grpo.advantages)
    assert torch.equal(spro.advantages, (same.advantages[:, None] * same.response_mask))


@pytest.mark.parametrize(("kl_coef", "epochs"), [(0.0, 1), (0.01, 1), (0.0, 2)])
def test_a_run_compares_with_its_start(kl_coef: float, epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first step the policy is the reference. The loss gets only what it reads."""
    judge = RolloutStage.judge
    monkeypatch.setattr(
        RolloutStage, "judge", lambda *args: dataclasses.replace(judge(*args), prediction_states=None)
    )  # states from sampling differ in the last bits
    policy = tiny_policy()
    reference, gate, loss = copy.deepcopy(policy.model).requires_grad_(False), SignedGate("add"), LossConfig(kl_coef=kl_coef)
    update = UpdatePlan(problems=2, group_size=4, inner_epochs=epochs)
    module = make_module(policy, Spro(), gate=gate, reference=reference, loss=loss, update=update)
    if epochs > 1:
        monkeypatch.setattr(module.collector, "_with_states", lambda rollouts: rollouts)
    first = module.collector.collect(PROBLEMS, 0).experience
    group = first.rollouts.advantages
    assert group is not None
    assert torch.equal(first.credit.advantages, group[:, None] * first.rollouts.response_mask)
    assert (first.rollouts.old_logprobs is None) == (epochs == 1)
    assert (first.rollouts.ref_logprobs is None) == (kl_coef == 0)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    moved = module.collector.collect(PROBLEMS, 0).experience
    assert (moved.credit.importance != 0).any()
    with_lent = module.collector.assign_credit(dataclasses.replace(moved.rollouts, ref_logprobs=None), everything=True)
    assert torch.equal(with_lent.importance, moved.credit.importance), "an evaluation's heat-map gets the same"


def test_without_a_reference_it_says_so(rollouts: Rollouts) -> None:
    with pytest.raises(ValueError, match=r"scorer=spro compares the policy with .* task=train"):
        Spro()(None, dataclasses.replace(rollouts, ref_logprobs=None))
    with pytest.raises(ValueError, match=r"scorer\.beta must be finite and >= 0, got -1"):
        Spro(-1.0)
