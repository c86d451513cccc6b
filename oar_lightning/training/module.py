"""The training loop of RL with verifiable rewards: collect -> credit -> loss, on Lightning's automatic optimisation.

The loader yields one `Slot` per micro-batch. At the first slot of a batch of rollouts the policy samples, the rewards are
judged and the credit is assigned (`collector.py`). Each `training_step` then is one micro-batch's loss. One counter counts:
Lightning's ``global_step`` is the number of optimizer steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import Tensor

from oar_lightning.credit.component import region_mask
from oar_lightning.distributed.strategies import adapt
from oar_lightning.objective.diagnostics import mean_correlation
from oar_lightning.objective.loss import LossInputs, policy_loss
from oar_lightning.policy.casting import precision_name
from oar_lightning.policy.pretrained import Policy
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.rollout import RolloutStage
from oar_lightning.training.collector import ExperienceCollector
from oar_lightning.training.datamodule import observe_pass_rates
from oar_lightning.training.experience import Experience
from oar_lightning.training.forward import UpdateForward
from oar_lightning.training.method import Method
from oar_lightning.training.micro_batches import MicroBatches, Share, choose_micro_batches
from oar_lightning.training.passes import Passes, plan_passes
from oar_lightning.training.policy_module import PolicyModule
from oar_lightning.training.precision import float32_by_default, precision_of
from oar_lightning.training.schedule import Schedule
from oar_lightning.training.shared_prompts import SharedPrompts
from oar_lightning.training.slots import Slot
from oar_lightning.training.step_log import StepLog
from oar_lightning.training.update_state import Stateful, UpdateState

log = logging.getLogger(__name__)


class PolicyOptimization(PolicyModule):
    """GRPO and its relatives with per-token credit.

    Args:
        policy: the model that samples and is updated, and its tokenizer.
        stage: prompts -> completions -> rewards.
        method: scorer, gate, advantage, loss, sampling, and how a batch of rollouts is used.
        optimizer: makes the optimizer of the given parameters.
        schedule: of the learning rate.
        seed: of what is sampled and of the order of rows.
        reference: the frozen model of a KL term or of the scorer; None where there is none, or with LoRA.
    """

    def __init__(
        self,
        policy: Policy,
        stage: RolloutStage,
        method: Method,
        optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Schedule,
        seed: int,
        reference: Any = None,
    ) -> None:
        super().__init__(policy, optimizer, schedule)
        self.collector = ExperienceCollector(policy.model, stage, method, seed, reference)
        self.forward_pass = UpdateForward(policy.model)
        self.step_log = StepLog()
        method.entropy.load_state_dict({})  # the settings may have served another run of this process
        self.step_log.listeners.append(method.entropy.observe)
        self.micro_batches = MicroBatches(policy.model, method.update, None, self.step_log)
        self.seed = seed
        self.experience: Experience | None = None
        self.passes: Passes | None = None
        self.prompts: SharedPrompts | None = None

    @property
    def method(self) -> Method:
        return self.collector.method

    @property
    def stateful(self) -> dict[str, Stateful]:
        """The parts that may keep a state."""
        return {**self.method.stateful, "reference": self.collector.later_reference}

    @property
    def budgets(self) -> tuple[TokenBudget, ...]:
        """What bounds the passes of each phase: the update, generation, scoring."""
        return self.collector.budgets

    @float32_by_default()
    def training_step(self, slot: Slot, batch_idx: int) -> Tensor | None:
        """This slot's share of the optimizer step's loss; None where no completion has anything to teach."""
        assert self.experience is not None, "the first slot of a batch of rollouts, or the checkpoint, brings experience"
        if slot.microbatch == 0 or self.passes is None:
            self.passes = plan_passes(self.experience, slot, self.method, self.seed, self.forward_pass.prompts)
            self.micro_batches.begin(self.passes)
            prompts, passes = self.passes.prompts, len(self.passes.micro_batches)
            self.prompts = None if prompts is None else SharedPrompts(self.model, prompts, passes)
        return self.micro_batches.run(self.passes.micro_batch(slot.microbatch), self.share_of_loss)

    def share_of_loss(self, rows: Tensor) -> Share:
        """These rows' part of the optimizer step's loss, and their metrics."""
        assert self.experience is not None
        assert self.passes is not None
        part = self.experience.select(rows)
        rollouts, credit = part.rollouts, part.credit
        states = None if self.prompts is None else self.prompts.states(rollouts, rows)
        logprobs, entropy = self.forward_pass(rollouts, self.method, states)
        inputs = LossInputs(
            logprobs,
            logprobs.detach() if rollouts.old_logprobs is None else rollouts.old_logprobs,
            credit.advantages,
            part.loss_mask,
            self.passes.denominators,
            ref_logprobs=rollouts.ref_logprobs,
            entropy=entropy,
            entropy_weights=self.method.entropy.weights(
                part.loss_mask, self.passes.denominators, rollouts.difficulty, credit.entropy_factor
            ),
            sampler_logprobs=rollouts.sampler_logprobs,
            clip_low=credit.clip_low,
            clip_high=credit.clip_high,
            kl_factor=credit.kl_factor,
            ratio_mask=rollouts.response_mask if self.method.masks_loss else None,
        )
        out = policy_loss(inputs, self.method.loss_of(rollouts))
        detached = entropy.detach()
        region = region_mask(rollouts, self.method.gate.region)
        metrics = out.metrics | {
            "credit/corr_entropy": mean_correlation(credit.importance, detached, region),
            "entropy": (float(detached.sum()), float(rollouts.response_mask.sum())),
            **{name: (value, 1.0) for name, value in self.method.entropy.metrics.items()},
        }
        return Share(out.loss, metrics)

    def collect(self, slot: Slot) -> None:
        """Sample, judge and assign credit, with all weights on every rank."""
        with adapt(self.trainer).gathered_parameters(), precision_of(self.trainer):
            collected = self.collector.collect(slot.problems, slot.rollout, slot.progress)
        self.experience = collected.experience
        observe_pass_rates(self.trainer, slot.problems, self.collector.pass_rates(collected.experience.rollouts))
        self.step_log.add(collected)

    def check_trainer(self, trainer: L.Trainer) -> None:
        """Refuse, with a ValueError, a trainer under which scorer or reference cannot have the weights that they need."""
        sharded = adapt(trainer).shards_weights
        self.method.scorer.check_trainer(sharded, precision_name(trainer.precision))
        if self.method.loss.later_reference:
            self.collector.later_reference.check(sharded)

    # -- Lightning's hooks -----------------------------------------------------------------------------------------

    def configure_callbacks(self) -> list[L.Callback]:
        """Those that a trainer of its own, without a run's callbacks, needs."""
        return [callback for callback in (self.step_log, UpdateState(self)) if callback not in self.trainer.callbacks]

    def on_train_start(self) -> None:
        super().on_train_start()
        strategy = adapt(self.trainer)
        self.check_trainer(self.trainer)
        self.method.scorer.begin(self.model)
        self.forward_pass = UpdateForward(self.model, same_order=not strategy.ranks_may_differ_in_passes)
        self.micro_batches = choose_micro_batches(self.model, self.method.update, strategy, self.step_log)
        update, tokens = self.method.update, self.method.sampling.max_new_tokens
        if forecast := self.method.scorer.forecast(update.problems * update.group_size, tokens):
            log.info(forecast)
        if cost := self.method.entropy.forecast(update.problems * update.group_size // update.minibatches):
            log.info(cost)

    def on_train_batch_start(self, batch: Slot, batch_idx: int) -> None:
        if batch.first:
            self.collect(batch)
        self.step_log.clock.start()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.micro_batches.before_step()

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        self.micro_batches.zero_grad(optimizer)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.step_log.clock.lap()
