"""The training loop of RL with verifiable rewards: collect -> credit -> loss, on Lightning's automatic optimisation.

The loader yields one `Slot` per micro-batch. At the first slot of a batch of rollouts the policy samples, the rewards are
judged and the credit assigned (`collecting.py`); each `training_step` then is one micro-batch's loss. One counter counts:
Lightning's ``global_step`` is the number of optimizer steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oar_lightning.distributed.frozen import fill_in_frozen, leave_out_frozen
from oar_lightning.distributed.ranks import all_gather, gathered_parameters, rank, skip_step, world_size
from oar_lightning.objective.diagnostics import mean_correlation
from oar_lightning.objective.loss import Denominators, LossInputs, policy_loss
from oar_lightning.objective.metric_sums import MetricSums, Sums
from oar_lightning.policy.batching import even_chunks
from oar_lightning.policy.language_model import base_model, token_logprobs
from oar_lightning.policy.pretrained import Policy
from oar_lightning.policy.token_budget import sync_min
from oar_lightning.rollout import RolloutStage
from oar_lightning.training.collector import ExperienceCollector, Method
from oar_lightning.training.datamodule import dropped_metrics
from oar_lightning.training.experience import Experience
from oar_lightning.training.partial_gradients import PartialGradients
from oar_lightning.training.precision import full_by_default, passes_of
from oar_lightning.training.schedule import Schedule
from oar_lightning.training.slots import Slot

PHASES = {"generate": "rollout", "reward": "reward", "score": "score", "update": "update"}
"""Phase of a step as ``time/<phase>_s`` names it -> as the totals ``seconds/<phase>`` do."""


@dataclass(frozen=True)
class Passes:
    """The rows of each of this rank's passes of one optimizer step, what all ranks' losses are averaged over, and how many
    passes all ranks have."""

    rows: list[Tensor]
    over: Denominators
    of_all_ranks: int


class PolicyOptimization(ExperienceCollector):
    """GRPO and its relatives with per-token credit."""

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
        super().__init__(policy, stage, method, seed, reference)
        self.make_optimizer = optimizer
        self.schedule = schedule
        self._compiled: tuple[Any] | None = None
        self.experience: Experience | None = None
        self._passes: Passes | None = None
        self._made: list[list[int]] = []
        """Lengths of the rows of each pass of the current optimizer step so far."""
        self._update_seconds = 0.0
        self._clock = time.perf_counter()
        self.former_seconds = dict.fromkeys(PHASES, 0.0)
        """Of each phase, in the steps before this one."""

    def on_train_batch_start(self, batch: Slot, batch_idx: int) -> None:
        if batch.first:
            with gathered_parameters(self.trainer), passes_of(self.trainer):
                self.experience = self.collect(batch.problems, batch.rollout)
        self._clock = time.perf_counter()

    # -- updating the policy ---------------------------------------------------------------------------------------

    @full_by_default()
    def training_step(self, batch: Slot, batch_idx: int) -> Tensor | None:
        """This micro-batch's share of the optimizer step's loss; None where no completion has anything to teach.

        With several ranks, one that has nothing for this slot runs along with a loss of zero: all of them have to take part
        in each backward pass.
        """
        assert self.experience is not None, "the first slot of a batch of rollouts, or the checkpoint, brings experience"
        if batch.microbatch == 0 or self._passes is None:
            self._passes, self._made = self._plan_passes(batch), []
            if self._repeats:
                self.zero_grad()
        # the loss is a sum of shares; its mean is one over 1 step, whatever the number of passes and ranks
        self._sums.add({"loss": (0.0, float(batch.microbatch == 0 and rank() == 0))} if self._passes.of_all_ranks else {})
        if batch.microbatch >= len(self._passes.rows):
            if world_size() > 1:
                return self._nothing()
            # a loss scaler makes no step where the last slot has no loss; this one has no gradient
            return torch.zeros((), device=self.device, requires_grad=True) if self._passes.rows and self._scaled else None
        rows = self._passes.rows[batch.microbatch]
        lengths = self.experience.rollouts.attention_mask[rows].sum(1).tolist()
        if self._repeats:
            return self._learn(rows, lengths)
        loss, metrics = self._share_of_loss(rows)
        self._sums.add(metrics)
        self._made.append(lengths)
        # Lightning averages over accumulate_grad_batches, DeepSpeed once more, and both over ranks, which is undone here
        averaged = 2 if self._trainer and self.trainer.strategy.handles_gradient_accumulation else 1
        return loss * self.method.update.microbatches**averaged * world_size()

    @property
    def _scaled(self) -> bool:
        """Whether the trainer scales losses (16-mixed)."""
        return bool(self._trainer and getattr(self.trainer.precision_plugin, "scaler", None) is not None)

    @property
    def _repeats(self) -> bool:
        """Whether a pass that does not fit into memory is made again in parts. Not with DeepSpeed: its ranks make each pass
        together."""
        return self.method.update.budget.auto and bool(
            self._trainer and not self.trainer.strategy.handles_gradient_accumulation
        )

    def _learn(self, rows: Tensor, lengths: list[int]) -> Tensor:
        """Make the gradients of the rows' share of the loss, in parts where it does not fit into memory; returns a loss of its
        value that moves nothing, for Lightning.

        Each rank does so by itself: what DDP sums over ranks are the gradients that are there after its own backward pass.
        """
        gradients = PartialGradients([p for p in self.parameters() if p.requires_grad], len(rows))

        def learn(chunk: list[int]) -> tuple[Tensor, Sums]:
            loss, metrics = self._share_of_loss(rows[chunk])
            with gradients.of(chunk) as missing, torch.autocast(loss.device.type, enabled=False):
                self.trainer.strategy.backward(loss * world_size(), None, **missing)
            return loss.detach(), metrics

        shares = []
        for chunk, (loss, metrics) in self.method.update.budget.run_in_chunks(lengths, learn, [[*range(len(rows))]]):
            self._sums.add(metrics)
            self._made.append([lengths[i] for i in chunk])
            shares.append(loss)
        total = torch.stack(shares).sum() * self.method.update.microbatches * world_size()
        return self._nothing() + total if world_size() > 1 else total.requires_grad_()

    def _share_of_loss(self, rows: Tensor) -> tuple[Tensor, Sums]:
        """These rows' share of the optimizer step's loss, and their metrics."""
        assert self.experience is not None
        assert self._passes is not None
        part = self.experience.select(rows)
        mask = part.rollouts.response_mask
        logprobs, entropy = self._logprobs(self.model, part.rollouts, decoder=self._decoder())
        old = part.rollouts.old_logprobs
        inputs = LossInputs(
            logprobs,
            logprobs.detach() if old is None else old,
            part.credit.advantages,
            mask,
            self._passes.over,
            ref_logprobs=part.rollouts.ref_logprobs,
            entropy=entropy,
            sampler_logprobs=part.rollouts.sampler_logprobs,
        )
        out = policy_loss(inputs, self.method.loss)
        correlation = mean_correlation(part.credit.importance, entropy.detach(), part.rollouts.reasoning_mask)
        return out.loss, out.metrics | {
            "credit/corr_entropy": correlation,
            "entropy": (float(entropy.detach().sum()), float(mask.sum())),
            "loss": (float(out.loss.detach()), 0.0),
        }

    def _plan_passes(self, slot: Slot) -> Passes:
        """Which of this rank's rows each pass of the slot's optimizer step takes; what the step is averaged over is known
        from all ranks."""
        assert self.experience is not None
        method, update, rollouts = self.method, self.method.update, self.experience.rollouts
        rows = self.experience.minibatch(slot, update, self.seed, rank(), world_size())
        completions, tokens = len(rows), int(rollouts.response_mask[rows].sum())
        if method.loss.ignores_zero_advantage:
            rows = rows[self.experience.credit.advantages[rows].ne(0).any(1)]
        # by length, so that passes hold little padding; which one a row is in does not matter
        lengths = rollouts.attention_mask[rows].sum(1).tolist()
        buckets = even_chunks(lengths, update.microbatches, update.budget.tokens)
        counts = all_gather((completions, tokens, len(buckets)))
        total = [float(sum(count)) for count in zip(*counts, strict=True)]
        over = Denominators(total[0], max(1.0, total[1]), float(method.sampling.max_new_tokens))
        return Passes([rows[bucket] for bucket in buckets], over, int(total[2]))

    def _decoder(self) -> Any:
        """The decoder of the update's passes: None for the model's own, or that compiled."""
        if self.method.update.compile and self._compiled is None:
            # in a tuple: not a submodule, or every weight would be saved twice. Lengths differ from pass to pass
            self._compiled = (torch.compile(base_model(self.model).get_decoder(), dynamic=True),)
        return self._compiled and self._compiled[0]

    def _nothing(self) -> Tensor:
        """A loss of zero from a pass over two tokens, through the same parameters as every other pass."""
        ids = torch.zeros(1, 2, dtype=torch.long, device=self.device)
        there = torch.ones_like(ids, dtype=torch.bool)
        logprobs, _ = token_logprobs(self.model, ids, there, there & torch.tensor([False, True], device=self.device))
        return 0.0 * logprobs.sum()

    def on_train_start(self) -> None:
        sync_min(self.budgets)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        if not self._repeats:  # else dropped before: Lightning asks after the first `training_step`, which has made gradients
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        nothing = self._passes is not None and not self._passes.of_all_ranks
        if nothing:
            self.zero_grad()  # as with one rank, where no pass is made: without gradients an optimizer moves nothing
        skip_step(self.trainer, nothing)
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        if gradients:
            self._pending["grad_norm"] = float(torch.nn.utils.get_total_norm(gradients))
        self._pending["learning_rate"] = optimizer.param_groups[0]["lr"]

    def on_after_backward(self) -> None:
        self._lap()

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        engine = self.trainer.model
        if hasattr(engine, "get_global_grad_norm") and (norm := engine.get_global_grad_norm()) is not None:
            self._pending["grad_norm"] = float(norm)  # DeepSpeed keeps its gradients to itself
        self._lap()

    def _lap(self) -> None:
        """Count the time up to here as the update's; an evaluation that follows is none of it."""
        now = time.perf_counter()
        self._update_seconds, self._clock = self._update_seconds + now - self._clock, now

    def phase_seconds(self) -> dict[str, float]:
        """Seconds of each phase so far, those of the current step included."""
        current = self._pending | {"time/update_s": self._update_seconds}
        return {phase: self.former_seconds[phase] + current.get(f"time/{phase}_s", 0.0) for phase in PHASES}

    def on_train_batch_end(self, outputs: Any, batch: Slot, batch_idx: int) -> None:
        if batch.microbatch < self.method.update.microbatches - 1:
            return
        self._pending["time/update_s"] = self._update_seconds
        self._sums.add(_padding(self._made))
        sync_min(self.budgets)
        tokens = {budget.key.split(".")[0]: budget.tokens for budget in self.budgets if budget.auto}
        self._pending |= {f"memory/token_budget_{phase}": float(n) for phase, n in tokens.items() if n is not None}
        self._sums.fold(max, self._pending)  # times are those of the slowest rank, the others' the same on all
        metrics = MetricSums().merge(all_gather(self._sums)).means() | dropped_metrics(self.trainer)
        metrics["step_time"] = sum(metrics.get(f"time/{phase}_s", 0.0) for phase in PHASES)
        self.former_seconds = self.phase_seconds()
        self._pending, self._sums, self._update_seconds = {}, MetricSums(), 0.0
        for logger in self.trainer.loggers:
            logger.log_metrics(metrics, step=self.trainer.global_step)
        shown = {"reward": "reward", "accuracy": "rewards/accuracy", "entropy": "entropy"}
        for name, key in shown.items():
            if key in metrics:
                self.log(name, metrics[key], prog_bar=True, logger=False, batch_size=1)

    # -- wiring ----------------------------------------------------------------------------------------------------

    def configure_optimizers(self) -> Any:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return self.schedule.with_optimizer(self.make_optimizer(trained), int(self.trainer.max_steps))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if budgets := {budget.key: budget.tokens for budget in self.budgets if budget.auto}:
            checkpoint["token_budgets"] = budgets
        leave_out_frozen(self, checkpoint)
        if self.experience is not None and self.method.update.steps_per_rollout > 1:
            checkpoint["experience"] = all_gather(self.experience.state_dict())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for budget in self.budgets:
            budget.set_start(checkpoint.get("token_budgets", {}).get(budget.key, budget.tokens))
        fill_in_frozen(self, checkpoint)
        if "experience" not in checkpoint:
            return
        states = checkpoint["experience"]
        if len(states) == world_size():
            self.experience = Experience.from_state_dict(states[rank()], self.device)
        elif int(checkpoint["global_step"]) % self.method.update.steps_per_rollout:
            raise ValueError(
                f"the checkpoint at step {checkpoint['global_step']} is in the middle of a batch of rollouts of {len(states)} "
                f"ranks and cannot go on with {world_size()}; set trainer.devices to {len(states)} until a checkpoint whose "
                f"step is a multiple of {self.method.update.steps_per_rollout} (update.inner_epochs * update.minibatches)"
            )


def _padding(passes: list[list[int]]) -> Sums:
    """How well passes over rows of these lengths are filled."""
    if not passes:
        return {}
    sizes = [len(lengths) * max(lengths) for lengths in passes]
    return {
        "update/padding": (float(sum(sizes) - sum(map(sum, passes))), float(sum(sizes))),
        "update/microbatch_tokens": (float(max(sizes)), 1.0),
        "update/passes": (float(len(sizes)), 1.0),
    }
