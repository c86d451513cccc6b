"""What a step logs, against a transcription in numpy that reads nothing but the weights, the completions and the credit."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from support.fixtures import fit, make_module, tiny_policy

from oar_lightning.credit.scorers import Random
from oar_lightning.objective.loss import LossConfig
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.slots import Slot, UpdatePlan

CLIP = 0.2


class Keep(L.Callback):
    """Copies of the policy as it is before each optimizer step, and the steps' experience."""

    def __init__(self) -> None:
        self.policies: list[Any] = []
        self.experience: list[Any] = []

    def on_train_batch_start(self, trainer: L.Trainer, module: PolicyOptimization, *_: Any) -> None:
        if len(self.policies) == trainer.global_step:
            self.policies.append(copy.deepcopy(module.model).double().eval())

    def on_train_batch_end(self, trainer: L.Trainer, module: PolicyOptimization, *_: Any) -> None:
        if len(self.experience) < trainer.global_step:
            self.experience.append(module.experience)


def predictions(model: Any, rollouts: Any, temperature: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Log-probability and entropy of each token of each completion, its prompt without padding."""
    found = []
    for ids, attention, response in zip(rollouts.token_ids, rollouts.attention_mask, rollouts.response_mask, strict=True):
        kept = ids[attention]
        with torch.no_grad():
            logits = model(kept[None]).logits[0].numpy() / temperature
        logits = logits - logits.max(1, keepdims=True)
        logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        first = int(attention.sum() - response.sum())
        rows = logprobs[first - 1 : -1]
        found.append((rows[np.arange(len(rows)), kept[first:].numpy()], -(np.exp(rows) * rows).sum(1)))
    return found


def expected_loss(config: LossConfig, now: Any, old: Any, reference: Any, advantages: list[np.ndarray], limit: int) -> float:
    """The loss of a whole optimizer step, one completion after the other."""
    sums, lengths, tokens, entropies = [], [], sum(len(lp) for lp, _ in now), 0.0
    for (lp, entropy), (lp_old, _), (lp_ref, _), a in zip(now, old, reference, advantages, strict=True):
        difference = lp - lp_old
        ratio = np.exp(difference) if config.ratio == "token" else np.full_like(lp, np.exp(difference.mean()))
        if config.surrogate == "cispo":
            terms = -np.minimum(ratio, config.ratio_cap) * a * lp
        else:
            terms = -np.minimum(ratio * a, np.clip(ratio, 1 - CLIP, 1 + CLIP) * a)
        if config.kl_coef:
            terms = terms + config.kl_coef * (np.exp(lp_ref - lp) - (lp_ref - lp) - 1)
        sums.append(terms.sum())
        lengths.append(len(lp))
        entropies += entropy.sum()
    mean = {
        "grpo": np.mean([s / n for s, n in zip(sums, lengths, strict=True)]),
        "dapo": sum(sums) / tokens,
        "bnpo": sum(sums) / tokens,  # of a single micro-batch; tests/objective has several
        "dr_grpo": sum(sums) / (len(sums) * limit),
    }[config.reduction]
    return float(mean - config.entropy_coef * entropies / tokens)


LOSSES = {
    "grpo": LossConfig(),
    "dapo": LossConfig(reduction="dapo"),
    "dr_grpo": LossConfig(reduction="dr_grpo"),
    "bnpo": LossConfig(reduction="bnpo"),
    "gspo": LossConfig(ratio="sequence"),
    "gspo_token": LossConfig(ratio="sequence_token"),
    "cispo": LossConfig(surrogate="cispo", reduction="dapo"),
    "kl": LossConfig(kl_coef=0.3),
    "entropy": LossConfig(entropy_coef=0.05),
    "entropy_penalty": LossConfig(entropy_coef=-0.05),
}
ALIKE = ("dr_grpo", "bnpo", "gspo_token", "entropy_penalty")
"""Losses that are made like others."""


@pytest.mark.parametrize("temperature", [0.7, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in LOSSES])
def test_the_third_step_on_the_same_rollouts(name: str, temperature: float) -> None:
    """In it ratios are not 1 (the first step has a learning rate of 0), so that old and new log-probabilities count."""
    config = LOSSES[name]
    update = UpdatePlan(problems=2, group_size=4, inner_epochs=3, microbatches=1 if name == "bnpo" else 2)
    reference = tiny_policy(seed=1).model.requires_grad_(False)
    module = make_module(
        tiny_policy(), Random(), update=update, loss=config, reference=reference, lr=2e-2, temperature=temperature
    )
    keep = Keep()
    rows = fit(module, 3, [keep]).rows
    experience = keep.experience[2]
    rollouts, advantages = experience.rollouts, experience.credit.advantages
    of_tokens = [a[mask].double().numpy() for a, mask in zip(advantages, rollouts.response_mask, strict=True)]

    def found(at: float) -> float:
        now, old = (predictions(keep.policies[i], rollouts, at) for i in (2, 0))
        ref = predictions(copy.deepcopy(reference).double(), rollouts, at)
        return expected_loss(config, now, old, ref, of_tokens, module.method.sampling.max_new_tokens)

    expected = found(temperature)
    assert rows[3]["loss"] == pytest.approx(expected, rel=2e-5, abs=2e-7)
    assert abs(found(1.3) - expected) > 1e-3 * abs(expected), "the temperature matters"
    entropy = [e for _, e in predictions(keep.policies[2], rollouts, temperature)]
    if config.ignores_zero_advantage:  # such completions are not read
        entropy = [e for e, a in zip(entropy, of_tokens, strict=True) if a.any()]
    assert rows[3]["entropy"] == pytest.approx(np.concatenate(entropy).mean(), rel=2e-6)
    if config.kl_coef:
        pairs = zip(
            *(predictions(m, rollouts, temperature) for m in (keep.policies[2], copy.deepcopy(reference).double())), strict=True
        )
        kl = np.concatenate([np.exp(r - p) - (r - p) - 1 for (p, _), (r, _) in pairs])
        assert rows[3]["kl"] == pytest.approx(kl.mean(), rel=2e-5)


def test_mini_batches_are_in_another_order_in_each_epoch_and_each_rollout() -> None:
    update = UpdatePlan(problems=4, group_size=4, inner_epochs=2, minibatches=2)
    module = make_module(tiny_policy(), update=update)
    fit(module, 1)
    experience = module.experience
    assert experience is not None

    def rows(rollout: int, epoch: int, seed: int = 0) -> tuple[int, ...]:
        slot = dataclasses.replace(Slot((), 0, 0, 0, 0), rollout=rollout, inner_epoch=epoch)
        return tuple(experience.minibatch(slot, update, seed).tolist())

    orders = {rows(rollout, epoch, seed) for rollout in (0, 1) for epoch in (0, 1) for seed in (0, 1)}
    assert len(orders) == 8
