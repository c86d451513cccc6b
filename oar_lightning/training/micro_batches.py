"""How the gradient of a micro-batch is computed: in one pass, or in several where memory runs out.

Lightning averages the losses of `training_step` over micro-batches and ranks. Here they are shares that add up to the step's
loss, so the averaging is undone (`StrategyAdapter.loss_factor`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oar_lightning.distributed.ranks import world_size
from oar_lightning.distributed.strategies import StrategyAdapter
from oar_lightning.objective.metric_sums import Sums
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.training.partial_gradients import PartialGradients
from oar_lightning.training.passes import MicroBatch, Passes
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.training.step_log import StepLog


@dataclass(frozen=True)
class Share:
    """Some rows' part of the optimizer step's loss, and their metrics as (sum, count)."""

    loss: Tensor
    metrics: Sums


ShareOfLoss = Callable[[Tensor], Share]
"""Rows -> their part of the step's loss."""


class MicroBatches:
    """Makes each micro-batch in one pass.

    Args:
        model: the policy.
        update: its micro-batches and their token budget.
        strategy: the trainer's; None without a trainer.
        log: gets the metrics of every pass.
    """

    def __init__(self, model: Any, update: UpdatePlan, strategy: StrategyAdapter | None, log: StepLog) -> None:
        self.model = model
        self.update = update
        self.strategy = strategy
        self.log = log
        self.passes: Passes | None = None

    def begin(self, passes: Passes) -> None:
        """Start an optimizer step."""
        self.passes = passes
        self.log.begin(passes.of_all_ranks > 0)

    def run(self, micro_batch: MicroBatch, share_of_loss: ShareOfLoss) -> Tensor | None:
        """The loss that Lightning is to differentiate; None for none."""
        if not len(micro_batch):
            return self._empty()
        share = share_of_loss(micro_batch.rows)
        self.log.add_pass(float(share.loss.detach()), share.metrics, micro_batch.lengths)
        return share.loss * self._loss_factor

    def before_step(self) -> None:
        """Skip the optimizer step where no rank has a completion to learn from.

        Without gradients an optimizer moves nothing: neither its states nor, by weight decay, the weights. Several ranks have
        gradients of zero in this case (`zero_loss`), which would.
        """
        nothing = self.passes is not None and not self.passes.of_all_ranks
        if nothing:
            self.model.zero_grad()
        if self.strategy is not None:
            self.strategy.skip_step(nothing)

    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        """Drop the gradients of the step before; called between the first forward pass and its backward pass."""
        optimizer.zero_grad()

    @property
    def _loss_factor(self) -> float:
        return 1.0 * self.update.microbatches if self.strategy is None else self.strategy.loss_factor(self.update.microbatches)

    def _empty(self) -> Tensor | None:
        """The loss of a slot without rows.

        - Several ranks, or DeepSpeed: `zero_loss`, since all ranks have to take part in each backward pass, and DeepSpeed
          refuses a micro-batch without one.
        - A loss scaler, and other slots of the step have rows: a constant 0, since Lightning skips the scaler's step where
          the last slot has no loss.
        - Otherwise None: nothing to differentiate.
        """
        if world_size() > 1 or (self.strategy is not None and self.strategy.needs_each_loss):
            return zero_loss(self.model)
        begun = self.passes is not None and bool(self.passes.micro_batches)
        if begun and self.strategy is not None and self.strategy.scales_losses:
            return torch.zeros((), device=self.model.device, requires_grad=True)
        return None


class RepeatedMicroBatches(MicroBatches):
    """Repeats a pass that does not fit into memory in smaller parts.

    The backward passes run here and not in Lightning: where one breaks off, the repetition adds only the gradients that are
    still missing. Lightning then gets a loss of the right value and without gradient. Ranks repeat independently, since DDP
    adds up gradients only after this rank's last backward pass.
    """

    def begin(self, passes: Passes) -> None:
        super().begin(passes)
        self.model.zero_grad()

    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        """Do nothing. Lightning calls this after the first pass has made gradients; `begin` has dropped the old ones."""

    def run(self, micro_batch: MicroBatch, share_of_loss: ShareOfLoss) -> Tensor | None:
        if not len(micro_batch):
            return self._empty()
        assert self.strategy is not None
        strategy, rows = self.strategy, micro_batch.rows
        gradients = PartialGradients([p for p in self.model.parameters() if p.requires_grad], len(rows))

        def learn(chunk: list[int]) -> Share:
            share = share_of_loss(rows[chunk])
            with gradients.of(chunk) as missing, torch.autocast(share.loss.device.type, enabled=False):
                if missing is not None:
                    strategy.backward(share.loss * world_size(), **missing)
            return dataclasses.replace(share, loss=share.loss.detach())

        losses = []
        everything = [list(range(len(rows)))]
        for chunk, share in self.update.budget.run_in_chunks(micro_batch.lengths, learn, everything):
            self.log.add_pass(float(share.loss.detach()), share.metrics, [micro_batch.lengths[i] for i in chunk])
            losses.append(share.loss)
        total = torch.stack(losses).sum() * self._loss_factor
        return zero_loss(self.model) + total if world_size() > 1 else total.requires_grad_()


def choose_micro_batches(model: Any, update: UpdatePlan, strategy: StrategyAdapter, log: StepLog) -> MicroBatches:
    """`RepeatedMicroBatches` for `update.token_budget=auto`, but not with DeepSpeed, whose ranks make each pass together."""
    repeats = update.budget.auto and strategy.ranks_may_differ_in_passes
    return (RepeatedMicroBatches if repeats else MicroBatches)(model, update, strategy, log)


def zero_loss(model: Any) -> Tensor:
    """A loss of 0 from a pass over two tokens, the shortest text with a prediction.

    It goes through the same parameters as every other pass, for which DDP and ZeRO wait.
    """
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    attention_mask = torch.ones_like(ids, dtype=torch.bool)
    predicted = torch.tensor([[False, True]], device=model.device)
    logprobs, _ = token_logprobs(model, ids, attention_mask, predicted)
    return 0.0 * logprobs.sum()
