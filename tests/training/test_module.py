"""The training loop: exactness of micro-batches, GRPO as the uniform case, groups without signal, interruption and resume."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from support.credit_methods import credit_methods, decided_policy, reference_of
from support.fixtures import TASK, ConstantReward, LengthReward, fit, make_module, make_stage, tiny_policy, weights

from oar_lightning.common.randomness import derive_seed
from oar_lightning.credit.gates import BilevelGate, ClipGate, DirectGate, Gate, SelectGate, SignedGate
from oar_lightning.credit.scorers import Entropy, FunctionScorer, OarG, OarP, Position, Random, Scorer, Spro, Uniform
from oar_lightning.credit.scorers.forward_free import EntropyAdvantage, Gtpo, Hicra, Probability, Steer, Ucas
from oar_lightning.data.chain.task import ChainProblems
from oar_lightning.evaluation.evaluate import EvaluationConfig
from oar_lightning.objective.advantage import group_advantages
from oar_lightning.objective.entropy import AdaptiveEntropy, EntropyControl, StepEntropy
from oar_lightning.objective.loss import LossConfig
from oar_lightning.policy import language_model
from oar_lightning.rollout import SamplingConfig
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.training.callbacks import EvaluationCallback, GracefulStop, LastCheckpoint, RandomState, RunIdentity
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.slots import Slot, UpdatePlan
from oar_lightning.types import Rollouts

TIMES = ("time/",)


def without_times(rows: dict[int, dict[str, float]]) -> dict[int, dict[str, float]]:
    return {step: {k: v for k, v in row.items() if not k.startswith(TIMES)} for step, row in rows.items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def plain_grpo_step(policy, problems, update: UpdatePlan) -> dict[str, torch.Tensor]:
    """One GRPO step written from the paper, without this project's loss, gate or module."""
    model = policy.model
    stage = make_stage(policy, LengthReward())
    seeds = [derive_seed(0, "rollout", 0, i) for i in range(len(problems))]
    rollouts = stage(model, problems, update.group_size, SamplingConfig(max_new_tokens=12), seeds)
    r = rollouts.rewards.view(-1, update.group_size)
    advantages = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten()
    model.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=update.dtype is not None):
        logits = model(input_ids=rollouts.token_ids, attention_mask=rollouts.attention_mask.long()).logits.float()
    logp = torch.log_softmax(logits[:, :-1], -1).gather(-1, rollouts.token_ids[:, 1:, None]).squeeze(-1)
    mask = rollouts.response_mask[:, 1:].float()
    per_token = -(logp - logp.detach()).exp() * advantages[:, None]
    loss = ((per_token * mask).sum(1) / mask.sum(1)).mean()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def flat(gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)])


class FirstGradient(L.Callback):
    """Keeps the gradient of the first optimizer step, before clipping."""

    def on_before_optimizer_step(self, trainer, module, optimizer) -> None:
        if trainer.global_step == 0:
            self.gradient = {
                n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in module.model.named_parameters()
            }


def test_uniform_gradient_is_the_papers_grpo() -> None:
    update = UpdatePlan(problems=3, group_size=4)
    problems = [ChainProblems(TASK)[i] for i in range(3)]
    expected = plain_grpo_step(tiny_policy(), problems, update)
    catch = FirstGradient()
    fit(make_module(tiny_policy(), update=update), 1, [catch])
    scale = max(float(g.abs().max()) for g in expected.values())
    assert scale > 1e-3
    for name, gradient in expected.items():
        assert torch.allclose(catch.gradient[name], gradient, atol=2e-6 * scale + 1e-7), name


def test_an_update_in_bfloat16_is_that_of_autocast_after_the_same_sampling_and_scoring() -> None:
    """`update.dtype`: its gradient is the one by hand under autocast, and is told from float32's."""
    seen: list[bool] = []

    def alike(model: Any, rollouts: Rollouts) -> torch.Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        return torch.ones(rollouts.token_ids.shape)

    problems = [ChainProblems(TASK)[i] for i in range(3)]
    gradients, expected, texts = [], [], []
    for dtype in (None, "bfloat16"):
        update = UpdatePlan(problems=3, group_size=4, dtype=dtype)
        expected.append(flat(plain_grpo_step(tiny_policy(), problems, update)))
        catch, module = FirstGradient(), make_module(tiny_policy(), scorer=FunctionScorer(alike), update=update)
        fit(module, 1, [catch])
        gradients.append(flat(catch.gradient))
        texts.append(module.experience.rollouts.token_ids)
    assert seen == [False, False]
    assert torch.equal(*texts)
    rounding = float((expected[0] - expected[1]).norm())
    assert rounding > 1e-4 * float(expected[0].norm())
    assert float((gradients[1] - expected[1]).norm()) < 0.5 * rounding  # bfloat16 rounds as products are divided
    assert float((gradients[0] - expected[0]).norm()) < 0.01 * rounding


@pytest.mark.parametrize("keep_states", [True, False])
def test_ratios_begin_at_1_with_an_update_in_bfloat16(keep_states: bool) -> None:
    """The old policy's log-probabilities, and the reference's, are of the same passes; states of sampling are not."""
    update = UpdatePlan(problems=2, group_size=4, minibatches=1, inner_epochs=2, dtype="bfloat16")
    loss = LossConfig(clip_low=1e-7, clip_high=1e-7, kl_coef=0.1)
    module = make_module(tiny_policy(), update=update, loss=loss, reference=tiny_policy().model, lr=1e-2)
    sampling = SamplingConfig(max_new_tokens=12, keep_states=keep_states)
    module.collector.method = dataclasses.replace(module.method, sampling=sampling)
    rows = fit(module, 4).rows
    assert rows[1]["clip_ratio/region_mean"] == rows[1]["kl"] == 0
    assert rows[3]["clip_ratio/region_mean"] == 0, "of the second batch of rollouts"
    assert rows[4]["clip_ratio/region_mean"] > 0
    assert rows[3]["kl"] > 0


def test_what_a_scorer_reads_is_not_in_the_updates_precision() -> None:
    """Scorers compare it with passes of their own; the loss's ratios begin at 1 nevertheless."""

    class Reads(Random):
        needs_old = needs_reference = True

        def __call__(self, model: Any, rollouts: Rollouts) -> torch.Tensor:
            seen.append((rollouts.old_logprobs, rollouts.ref_logprobs))
            return super().__call__(model, rollouts)

    seen: list[tuple[torch.Tensor | None, torch.Tensor | None]] = []
    loss = LossConfig(clip_low=1e-7, clip_high=1e-7, kl_coef=0.1)
    for dtype in (None, "bfloat16"):
        update = UpdatePlan(problems=2, group_size=4, inner_epochs=2, dtype=dtype)
        module = make_module(tiny_policy(), scorer=Reads(), update=update, loss=loss, reference=tiny_policy().model)
        rows = fit(module, 1).rows
        assert dtype is None or rows[1]["clip_ratio/region_mean"] == 0
        assert module.experience is not None
        seen.append((module.experience.rollouts.old_logprobs, module.experience.rollouts.ref_logprobs))
    (read, used, read_half, used_half) = seen
    torch.testing.assert_close(read_half, read, rtol=0, atol=0)
    torch.testing.assert_close(used, read, rtol=0, atol=0)
    assert all(not torch.equal(a, b) for a, b in zip(used_half, used, strict=True))


def test_uniform_equals_gate_off_bit_for_bit() -> None:
    """Any scorer with the gate off is plain GRPO, and so is the uniform scorer through the gate: the same weights."""
    uniform, off = make_module(tiny_policy()), make_module(tiny_policy(), scorer=Random(), gate=BilevelGate(mode="off"))
    fit(uniform, 3)
    fit(off, 3)
    assert same(weights(uniform), weights(off))
    reshaped = make_module(tiny_policy(), scorer=Random())
    fit(reshaped, 3)
    assert not same(weights(uniform), weights(reshaped))


@pytest.mark.parametrize("reduction", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_microbatches_do_not_change_the_step(reduction: str, minibatches: int) -> None:
    gradients = []
    for microbatches in (1, 3):
        update = UpdatePlan(problems=3, group_size=4, minibatches=minibatches, microbatches=microbatches)
        catch = FirstGradient()
        fit(make_module(tiny_policy(), scorer=Random(), update=update, loss=LossConfig(reduction=reduction)), 2, [catch])
        gradients.append(catch.gradient)
    scale = max(float(g.abs().max()) for g in gradients[0].values())
    assert scale > 0
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradients[1][name], gradient, atol=3e-6 * scale), name


@pytest.mark.parametrize("token_budget", [1, 60, 10**6])
def test_a_token_budget_changes_no_step(token_budget: int) -> None:
    """Fewer or more passes, some slots empty: the same weights and the same logged loss."""
    results = []
    for settings in ({"microbatches": 1}, {"microbatches": 5, "token_budget": token_budget}):
        module = make_module(tiny_policy(), scorer=Random(), update=UpdatePlan(problems=2, group_size=4, **settings))
        rows = fit(module, 2).rows
        results.append((weights(module), rows[2]["loss"], rows[2]))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-6)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-4, abs=1e-6)
    row = results[1][2]
    assert 0 <= row["update/padding"] < 1
    passes = row["update/passes"]
    assert passes == 1 if token_budget == 10**6 else 1 < passes <= 5
    assert row["update/microbatch_tokens"] <= results[0][2]["update/microbatch_tokens"]


@pytest.mark.parametrize("token_budget", [10**6, "auto"])
def test_a_loss_scaler_makes_its_step_whatever_slots_are_empty(token_budget: Any) -> None:
    """Passes that fit into the first slots leave the last one, after which Lightning scales back, without a loss."""
    update = UpdatePlan(problems=2, group_size=4, microbatches=20, token_budget=token_budget)
    module = make_module(tiny_policy(), scorer=Random(), update=update)
    before = weights(module)
    fit(module, 2, plugins=[MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=64.0))])
    assert module.trainer.precision_plugin.scaler._growth_tracker == 2  # both steps were made, and finite
    assert not same(before, weights(module))


@pytest.mark.slow
def test_a_compiled_decoder_changes_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """`compile` hands the update's passes to torch.compile (here with a backend that runs the captured graph as it is)."""
    compile_ = torch.compile
    seen = []

    def captured(model: Any, **options: Any) -> Any:
        seen.append(options)
        return compile_(model, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", captured)
    results = []
    for compiled in (False, True):
        update = UpdatePlan(problems=2, group_size=4, compile=compiled)
        module = make_module(tiny_policy(), scorer=Random(), update=update)
        fit(module, 2)
        results.append(weights(module))
    assert seen == [{"dynamic": True}]
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-6)


def test_logged_loss_does_not_depend_on_microbatches() -> None:
    rows = []
    for microbatches in (1, 3):
        update = UpdatePlan(problems=3, group_size=4, minibatches=2, microbatches=microbatches)
        rows.append(fit(make_module(tiny_policy(), scorer=Random(), update=update), 2).rows)
    assert sorted(rows[0]) == sorted(rows[1]) == [1, 2]
    for step in (1, 2):
        for key in ("loss", "entropy", "grad_norm", "clip_ratio/region_mean"):
            assert rows[1][step][key] == pytest.approx(rows[0][step][key], rel=1e-4, abs=1e-7), key


class Failing(Scorer):
    def __call__(self, model, rollouts):
        raise AssertionError("groups with equal rewards must not be scored")


def test_groups_with_equal_rewards_cost_no_scoring_and_no_update() -> None:
    module = make_module(tiny_policy(), scorer=Failing(), reward=ConstantReward(), lr=1.0)
    before = weights(module)
    rows = fit(module, 3).rows
    assert same(before, weights(module))
    assert [rows[s]["frac_reward_zero_std"] for s in (1, 2, 3)] == [1.0, 1.0, 1.0]
    assert module.trainer.global_step == 3


class OneGroupReward:
    """Only the first problem's group has a signal."""

    def __call__(self, problems, completions):
        first = problems[0].id
        return [float(i % 2) if p.id == first else 1.0 for i, p in enumerate(problems)]


def test_groups_without_signal_are_left_out_exactly() -> None:
    """Leaving completions with advantage 0 out changes no gradient: the denominators still count them."""
    gradients = []
    for coefficient in (0.0, 1e-30):  # a KL term, however small, keeps every completion in
        catch = FirstGradient()
        policy = tiny_policy()
        loss = LossConfig(kl_coef=coefficient)
        reference = tiny_policy(1).model if coefficient else None
        fit(make_module(policy, reward=OneGroupReward(), loss=loss, reference=reference), 1, [catch])
        gradients.append(catch.gradient)
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradients[1][name], gradient, atol=1e-7), name
    assert max(float(g.abs().max()) for g in gradients[0].values()) > 1e-4


def test_first_rollouts_are_the_same_for_every_scorer() -> None:
    """Runs that differ in method only are paired: the scorers draw from generators of their own."""
    first = [fit(make_module(tiny_policy(), scorer=s), 1).rows[1]["reward"] for s in (Uniform(), Random(), OarG(), OarP())]
    assert len(set(first)) == 1


def test_scored_advantages_keep_the_groups_mass() -> None:
    module = make_module(tiny_policy(), scorer=Entropy())
    problems = tuple(ChainProblems(TASK)[i] for i in range(2))
    rollouts = module.collector.stage(module.model, problems, 4, module.method.sampling, [1, 2])
    advantages = group_advantages(rollouts.reward_terms, torch.ones(1), 4)
    credit = module.collector.assign_credit(dataclasses.replace(rollouts, advantages=advantages))
    response = rollouts.response_mask
    expected = advantages * response.sum(1)
    assert torch.allclose(credit.advantages.sum(1), expected, atol=1e-4)
    assert float((credit.weights - 1).abs().max()) > 0.1
    assert credit.advantages[~response].eq(0).all()


def callbacks(folder: Path, every: int) -> list[L.Callback]:
    return [RandomState(), RunIdentity(lambda: "run"), GracefulStop(), LastCheckpoint(folder, every)]


@pytest.mark.parametrize(
    "update",
    [
        UpdatePlan(problems=2, group_size=4),
        UpdatePlan(problems=2, group_size=4, inner_epochs=2, minibatches=2, microbatches=2),
    ],
    ids=["on-policy", "inner-epochs"],
)
@pytest.mark.parametrize("stop", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(5, marks=pytest.mark.slow)])
def test_resume_is_bit_exact_at_any_step(tmp_path: Path, update: UpdatePlan, stop: int) -> None:
    whole = make_module(tiny_policy(), scorer=OarG(), update=update)
    all_rows = without_times(fit(whole, 6, callbacks(tmp_path / "whole", 0)).rows)
    first = make_module(tiny_policy(), scorer=OarG(), update=update)
    torch.manual_seed(99)
    rows = fit(first, stop, callbacks(tmp_path / "part", 0)).rows
    second = make_module(tiny_policy(1), scorer=OarG(), update=update)
    torch.manual_seed(5)  # the checkpoint must bring everything back
    rows |= fit(second, 6, callbacks(tmp_path / "part", 0), ckpt_path=str(tmp_path / "part" / "last.ckpt")).rows
    assert same(weights(whole), weights(second))
    assert without_times(rows) == all_rows


LIMITS: dict[str, Callable[[float], tuple[Scorer, Gate]]] = {
    "ar": lambda x: (Probability(), DirectGate(strength=0.2 * x)),
    "archer": lambda x: (Entropy(region="response"), ClipGate(0.2, 1e-3 + 0.4 * x, 1e-3 + 0.4 * x, kl_factor=1.0)),
    "archer_kl": lambda x: (Entropy(region="response"), ClipGate(0.2, 1e-3, 1e-3, kl_factor=1.0 - x)),
    "eighty_twenty": lambda x: (Entropy(region="response"), SelectGate(1 - 0.5 * x)),
    "eighty_twenty_all": lambda x: (Entropy(region="response"), SelectGate(1 - 0.5 * x, denominator="all")),
    "eighty_twenty_row": lambda x: (Entropy(region="response"), SelectGate(1 - 0.5 * x, "row")),
    "entropy_advantage": lambda x: (EntropyAdvantage(kappa=2.0 if x else 1e300), SignedGate("add")),
    "gtpo": lambda x: (Gtpo(0.1 * x), DirectGate()),
    "hicra": lambda x: (Hicra(0.2 * x, list("abcdefghijklmnopqrstuvwxyz")), SignedGate("add")),
    "spro": lambda x: (Spro(0.05 * x), SignedGate("add")),
    "steer": lambda x: (Steer(1 - 0.2 * x), DirectGate()),
    "ucas": lambda x: (Ucas(0.25 * x, 0.35 * x, 0.05 * x), SignedGate()),
}
"""Methods that are GRPO with x = 0, and something else with x = 1."""


def test_a_gates_bounds_reach_the_loss() -> None:
    """Of all tokens, below and above other ones than the loss has."""
    gate = ClipGate(1.0, 0.1, 0.6, kl_factor=1.0)
    module = make_module(tiny_policy(), Position(), LengthReward(), loss=LossConfig(reduction="dapo"), gate=gate)
    problems = tuple(ChainProblems(TASK)[i] for i in range(2))
    experience = module.collector.collect(problems, 0).experience
    rollouts = experience.rollouts
    own = module.collector.detached_logprobs(module.model, rollouts)
    moved = torch.tensor([0.3, 0.95, 1.4, 2.5]).repeat(own.numel() // 4 + 1)[: own.numel()].view_as(own)
    rollouts = dataclasses.replace(rollouts, old_logprobs=(own - moved.log()) * rollouts.response_mask)
    module.experience = dataclasses.replace(experience, rollouts=rollouts)
    loss = module.training_step(Slot(problems=problems, rollout=0, inner_epoch=0, minibatch=0, microbatch=0), 0)
    ratio, advantage = (x[rollouts.response_mask].numpy() for x in (moved, experience.credit.advantages))
    assert (advantage > 0).any()
    assert (advantage < 0).any()
    expected = -np.minimum(ratio * advantage, ratio.clip(0.9, 1.6) * advantage).mean()
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-4)


@pytest.fixture(scope="module")
def grpo_weights() -> dict[str, torch.Tensor]:
    return limit_weights(Uniform(), BilevelGate())


def limit_weights(scorer: Scorer, gate: Gate) -> dict[str, torch.Tensor]:
    """Three steps on one batch, the last with a KL term and clipped ratios: the first one's rate is 0."""
    policy, reference = tiny_policy(), tiny_policy().model.requires_grad_(False)
    update = UpdatePlan(problems=2, group_size=4, inner_epochs=3)
    loss = LossConfig(kl_coef=0.1, clip_low=1e-3, clip_high=1e-3)
    module = make_module(policy, scorer, update=update, loss=loss, gate=gate, reference=reference, lr=1e-2)
    fit(module, 3)
    return weights(module)


@pytest.mark.parametrize("x", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LIMITS)
def test_methods_in_their_limits_alone_are_grpo_bit_for_bit(name: str, x: int, grpo_weights: dict[str, torch.Tensor]) -> None:
    assert same(limit_weights(*LIMITS[name](x)), grpo_weights) == (x == 0)


class Remembers(Random):
    """Scores that depend on how often the scorer was called before."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __call__(self, model: Any, rollouts: Rollouts) -> torch.Tensor:
        self.calls += 1
        return super().__call__(model, rollouts) ** self.calls

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


@pytest.mark.parametrize("gate", [BilevelGate(), SelectGate(0.5, region="reasoning"), ClipGate(0.5, region="reasoning")])
def test_the_state_of_credit_is_resumed_bit_for_bit(tmp_path: Path, gate: Gate) -> None:
    """In the middle of a batch of rollouts too, whose masks and bounds are kept with it."""
    update = UpdatePlan(problems=2, group_size=4, inner_epochs=2, minibatches=2)
    loss = LossConfig(reduction="dapo")

    def module(seed: int = 0) -> PolicyOptimization:
        return make_module(tiny_policy(seed), Remembers(), update=update, gate=gate, loss=loss, lr=1e-2)

    whole, first, second = module(), module(), module(1)
    rows = without_times(fit(whole, 6, callbacks(tmp_path / "whole", 0)).rows)
    begun = without_times(fit(first, 5, callbacks(tmp_path / "part", 0)).rows)
    rest = fit(second, 6, callbacks(tmp_path / "part", 0), ckpt_path=str(tmp_path / "part" / "last.ckpt")).rows
    assert second.method.scorer.calls == whole.method.scorer.calls > 1
    assert same(weights(whole), weights(second))
    assert begun | without_times(rest) == rows


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in ("istar", "prime", "rlsd", "shear"))) for name in credit_methods()],
)
def test_sampling_signed_and_stateful_methods_resume_bit_for_bit(tmp_path: Path, name: str) -> None:
    """Stopped within a batch of rollouts; another one follows."""

    def module(seed: int = 0) -> PolicyOptimization:
        (scorer, gate), policy = credit_methods()[name], decided_policy(seed)
        update, reference = UpdatePlan(problems=2, group_size=4, minibatches=2), reference_of(scorer, decided_policy())
        return make_module(policy, scorer, update=update, gate=gate, reference=reference)

    whole, first, second = module(), module(), module(1)
    rows = without_times(fit(whole, 5, callbacks(tmp_path / "whole", 0)).rows)
    begun = without_times(fit(first, 3, callbacks(tmp_path / "part", 0)).rows)
    torch.manual_seed(7)
    rest = fit(second, 5, callbacks(tmp_path / "part", 0), ckpt_path=str(tmp_path / "part" / "last.ckpt")).rows
    assert begun | without_times(rest) == rows
    assert same(weights(whole), weights(second))
    assert not same(weights(first), weights(second))


def test_a_mask_shrinks_the_denominators_of_the_step() -> None:
    """With reduction=dapo the loss is the sum over the kept tokens by their number."""
    found = {}
    for denominator in ("kept", "all"):
        gate = SelectGate(0.25, denominator=denominator)
        module = make_module(tiny_policy(), Entropy(region="response"), gate=gate, loss=LossConfig(reduction="dapo"))
        rows = fit(module, 1).rows
        assert module.passes is not None
        found[denominator] = (rows[1]["loss"], module.passes.denominators.tokens)
    assert found["kept"][0] * found["kept"][1] == pytest.approx(found["all"][0] * found["all"][1], rel=1e-5)
    assert found["all"][1] * 0.25 <= found["kept"][1] <= found["all"][1] * 0.25 + 1


def high_target(kind: type[EntropyControl] = AdaptiveEntropy) -> EntropyControl:
    """A controller whose coefficient rises from the second step on."""
    return AdaptiveEntropy(1.5, rate=0.02) if kind is AdaptiveEntropy else StepEntropy(target=9.0, delta=0.01)


def test_a_controlled_entropy_term_at_0_is_grpo_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """GRPO that reads all completions."""
    monkeypatch.setattr(LossConfig, "ignores_zero_advantage", False)
    plain, zero = make_module(tiny_policy()), make_module(tiny_policy(), entropy=AdaptiveEntropy(1.5, coef_max=0.0))
    rows, others = (without_times(fit(module, 2).rows) for module in (plain, zero))
    assert same(weights(plain), weights(zero))
    assert {row.pop("entropy_coef") for row in others.values()} == {0.0}
    assert [row.pop("entropy_target", None) for row in others.values()] == [None, pytest.approx(1.5 * rows[1]["entropy"])]
    assert rows == others


def test_what_an_entropy_term_costs_is_told_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """An optimizer step has half of the 2 x 4 completions. Without a term nothing is told."""
    caplog.set_level(logging.INFO, logger="oar_lightning")
    update = UpdatePlan(problems=2, group_size=4, minibatches=2)
    fit(make_module(tiny_policy(), update=update), 1)
    assert "entropy:" not in caplog.text
    fit(make_module(tiny_policy(), update=update, entropy=StepEntropy()), 1)
    assert caplog.text.count("entropy: StepEntropy has all 4 completions of an optimizer step in the update,") == 1


@pytest.mark.parametrize("kind", [AdaptiveEntropy, pytest.param(StepEntropy, marks=pytest.mark.slow)])
def test_the_entropy_term_is_exact_over_micro_batches_and_its_coefficient_follows_the_log(kind: type[EntropyControl]) -> None:
    """Completions of advantage 0 are in it. Of two steps the second has the coefficient that the first's entropy gives."""
    found, control = [], high_target(kind)  # a run does not begin where another one has left the controller
    for microbatches in (1, 3):
        update = UpdatePlan(problems=2, group_size=4, microbatches=microbatches)
        module = make_module(tiny_policy(), reward=ConstantReward(), update=update, entropy=control, lr=1e-4)
        found.append((fit(module, 2).rows, weights(module)))
    (rows, one), (others, three) = found
    by_hand = 0.02 * 0.5 if kind is AdaptiveEntropy else 0.01
    assert [row["entropy_coef"] for row in rows.values()] == pytest.approx([0.0, by_hand])
    assert rows[1]["grad_norm"] == 0.0 < rows[2]["grad_norm"]
    for step in rows:
        assert {k: others[step][k] for k in ("loss", "entropy", "entropy_coef", "grad_norm")} == pytest.approx(
            {k: rows[step][k] for k in ("loss", "entropy", "entropy_coef", "grad_norm")}, rel=1e-5
        )
    assert rows[2]["loss"] == pytest.approx(-by_hand * rows[2]["entropy"], rel=0.05), "all have a difficulty of 1"
    for key in one:
        torch.testing.assert_close(three[key], one[key], rtol=0, atol=1e-5)


def test_an_adapted_entropy_term_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    """Stopped within a batch of rollouts, whose difficulties are kept with it."""
    update = UpdatePlan(problems=2, group_size=4, minibatches=2)

    def module(seed: int = 0) -> PolicyOptimization:
        return make_module(tiny_policy(seed), update=update, entropy=high_target())

    whole, first, second = module(), module(), module(1)
    rows = without_times(fit(whole, 3, callbacks(tmp_path / "whole", 0)).rows)
    begun = without_times(fit(first, 1, callbacks(tmp_path / "part", 0)).rows)
    rest = fit(second, 3, callbacks(tmp_path / "part", 0), ckpt_path=str(tmp_path / "part" / "last.ckpt")).rows
    assert begun | without_times(rest) == rows
    assert same(weights(whole), weights(second))
    assert second.method.entropy.state_dict() == whole.method.entropy.state_dict() != first.method.entropy.state_dict()
    difficulty = second.experience.rollouts.difficulty
    assert float(difficulty.mean()) == pytest.approx(1, abs=1e-6)


class Interrupt(L.Callback):
    """Sends this process a signal in the middle of an optimizer step."""

    def __init__(self, step: int, number: int) -> None:
        self.step, self.number, self.sent = step, number, False

    def on_before_backward(self, trainer, module, loss) -> None:
        if trainer.global_step == self.step and not self.sent:
            self.sent = True
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_finishes_the_step_and_leaves_a_checkpoint_that_continues_exactly(tmp_path: Path, number: int) -> None:
    update = UpdatePlan(problems=2, group_size=4, minibatches=2, microbatches=2)
    whole = make_module(tiny_policy(), update=update)
    fit(whole, 5, callbacks(tmp_path / "whole", 0))
    former = signal.getsignal(number)
    part = callbacks(tmp_path / "part", 0)
    stopped = make_module(tiny_policy(), update=update)
    fit(stopped, 5, [Interrupt(2, number), *part])
    assert stopped.trainer.global_step == 3
    assert part[2].received == number
    assert signal.getsignal(number) == former
    again = make_module(tiny_policy(1), update=update)
    fit(again, 5, callbacks(tmp_path / "part", 0), ckpt_path=str(tmp_path / "part" / "last.ckpt"))
    assert same(weights(whole), weights(again))


class SignallingReward(LengthReward):
    """Sends this process SIGTERM while it judges its `call`-th completions."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self, problems: Any, completions: Any) -> list[float]:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().__call__(problems, completions)


@pytest.mark.parametrize(("place", "stopped_at"), [("rollout", 3), ("evaluation before training", 1)])
def test_between_a_signal_and_the_checkpoint_lies_one_step_at_most(place: str, stopped_at: int, tmp_path: Path) -> None:
    """The step whose completions are being sampled, or the first one where the policy is still evaluated."""
    policy, rollout = tiny_policy(), place == "rollout"
    module = make_module(policy, reward=SignallingReward(3) if rollout else LengthReward())
    stage = make_stage(policy, LengthReward() if rollout else SignallingReward(1))
    config = EvaluationConfig(every_n_steps=0, samples=2, greedy=False, heatmap=False)
    eval_sets = {"test": [ChainProblems(TASK)[0]]}
    evaluation = EvaluationCallback(eval_sets, stage, module.method.sampling, config, Tracker(tmp_path, None))
    stop = GracefulStop()
    fit(module, 9, [evaluation, stop, LastCheckpoint(tmp_path / "checkpoints", 0)])
    assert stop.received == signal.SIGTERM
    assert module.trainer.global_step == stopped_at
    assert torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == stopped_at


def test_kl_and_old_logprobs_of_a_fresh_reference_are_consistent() -> None:
    """With the reference equal to the policy, the KL of the first step is 0 and grows after it."""
    policy = tiny_policy()
    reference = tiny_policy().model.requires_grad_(False)
    update = UpdatePlan(problems=2, group_size=4, inner_epochs=2)
    module = make_module(policy, update=update, loss=LossConfig(kl_coef=0.1), reference=reference, lr=1e-2)
    rows = fit(module, 4).rows
    assert rows[1]["kl"] == pytest.approx(0, abs=1e-9)
    assert rows[4]["kl"] > 1e-5
    assert all(not p.requires_grad for p in reference.parameters())
    assert not any("reference" in name for name in module.state_dict())


def test_states_of_sampling_serve_old_logprobs_and_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several steps a batch, old log-probabilities come from the states that sampling left, from one pass where it left
    none, and are the same; the states do not stay in memory or in checkpoints."""

    def old_logprobs(kept_bytes: int) -> torch.Tensor:
        monkeypatch.setattr(language_model, "STATES_BYTES", kept_bytes)
        module = make_module(tiny_policy(), update=UpdatePlan(problems=2, group_size=4, inner_epochs=2))
        fit(module, 1)
        assert module.experience is not None
        assert module.experience.rollouts.prediction_states is None
        assert module.experience.rollouts.old_logprobs is not None
        return module.experience.rollouts.old_logprobs

    with_states = old_logprobs(2**30)
    assert float(with_states.min()) < -1
    torch.testing.assert_close(old_logprobs(0), with_states, rtol=0, atol=1e-4)


def test_one_pass_serves_old_logprobs_and_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the engine left no states, several steps a batch cost one pass, not one for the old log-probabilities and one
    for the scorer's clean outcome."""
    monkeypatch.setattr("oar_lightning.rollout.cached.keeps_states", lambda *args: False)
    seen = []

    def scorer(model: Any, rollouts: Rollouts) -> torch.Tensor:
        seen.append(rollouts.prediction_states)
        return torch.zeros(rollouts.token_ids.shape)

    for inner_epochs in (1, 2):
        update = UpdatePlan(problems=2, group_size=4, inner_epochs=inner_epochs)
        fit(make_module(tiny_policy(), update=update, scorer=FunctionScorer(scorer)), 1)
    assert seen[0] is None
    assert seen[1] is not None
