"""The training loop of RL with verifiable rewards: collect -> credit -> loss, on Lightning's automatic optimisation.

The loader yields one `Slot` per micro-batch. At the first slot of a batch of rollouts the policy samples, the rewards are
judged and the credit assigned (`collect`); each `training_step` then is one micro-batch's loss. One counter counts:
Lightning's ``global_step`` is the number of optimizer steps.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from torch import Tensor

from oar_lightning.advantage import AdvantageConfig, group_advantages
from oar_lightning.batching import length_buckets
from oar_lightning.data.datamodule import dropped_metrics
from oar_lightning.data.stream import Slot, UpdatePlan
from oar_lightning.diagnostics import MetricSums, credit_metrics, mean_correlation, rollout_metrics
from oar_lightning.experience import Experience, split_rows
from oar_lightning.gating import GateConfig, gate_weights
from oar_lightning.language_model import base_model, evaluating, prediction_states, states_fit, token_logprobs
from oar_lightning.loss import Denominators, LossConfig, policy_loss
from oar_lightning.policy import Policy
from oar_lightning.randomness import derive_seed
from oar_lightning.rollout import RolloutStage, SamplingConfig
from oar_lightning.schedule import Schedule
from oar_lightning.scoring import Scorer, checked_importance
from oar_lightning.types import Credit, MathProblem, Rollouts

PHASES = {"generate": "rollout", "reward": "reward", "score": "score", "update": "update"}
"""Phase of a step as ``time/<phase>_s`` names it -> as the totals ``seconds/<phase>`` do."""


@dataclass(frozen=True)
class Method:
    """What makes one algorithm different from another."""

    scorer: Scorer
    gate: GateConfig
    advantage: AdvantageConfig
    loss: LossConfig
    update: UpdatePlan
    sampling: SamplingConfig


class PolicyOptimization(L.LightningModule):
    """GRPO and its relatives with per-token credit. `reference` is a frozen model, kept out of checkpoints."""

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
        super().__init__()
        self.model = policy.model
        self.tokenizer = policy.tokenizer
        self.stage = stage
        self.method = method
        self.make_optimizer = optimizer
        self.schedule = schedule
        self.seed = seed
        self._compiled: tuple[Any] | None = None
        self._reference = (reference,)  # in a tuple: not a submodule, hence neither trained nor saved
        self.experience: Experience | None = None
        self._pending: dict[str, float] = {}
        self._sums = MetricSums()
        self._update_seconds = 0.0
        self._clock = time.perf_counter()
        self.former_seconds = dict.fromkeys(PHASES, 0.0)
        """Of each phase, in the steps before this one."""

    # -- collecting experience -------------------------------------------------------------------------------------

    def on_train_batch_start(self, batch: Slot, batch_idx: int) -> None:
        if batch.first:
            with self.trainer.precision_plugin.forward_context():
                self.experience = self.collect(batch.problems, batch.rollout)
        self._clock = time.perf_counter()

    def collect(self, problems: tuple[MathProblem, ...], step: int) -> Experience:
        """Sample completions, judge them, assign credit. Drawn from (seed, step, problem's place) alone: runs that differ in
        method only start from the same completions, however many ranks share the problems."""
        rank, ranks = self.global_rank, self.trainer.world_size if self._trainer else 1
        seeds = [derive_seed(self.seed, "rollout", step, rank + ranks * i) for i in range(len(problems))]
        rollouts = self.stage(self.model, problems, self.method.update.group_size, self.method.sampling, seeds, step)
        rollouts = self._with_states(rollouts)
        advantages = self.advantages(rollouts.reward_terms, rollouts.group_size)
        started = time.perf_counter()
        credit = self.assign_credit(rollouts, advantages)
        seconds = time.perf_counter() - started
        self._pending |= rollout_metrics(rollouts) | rollouts.stats
        self._pending |= {"time/score_s": seconds, "credit/seconds": seconds}
        self._pending |= credit_metrics(rollouts, credit, self.method.gate)
        self._pending |= {f"credit/{name}": value for name, value in self.method.scorer.metrics.items()}
        return Experience(self._with_logprobs(rollouts), credit)

    def advantages(self, reward_terms: Tensor, group_size: int) -> Tensor:
        """The group advantages [B] of rewards [B K]."""
        weights = self.stage.rewards.weight_vector().to(reward_terms.device)
        return group_advantages(reward_terms, weights, group_size, self.method.advantage)

    def assign_credit(self, rollouts: Rollouts, advantages: Tensor) -> Credit:
        """A_{i,t} = A_i w_t. Completions with advantage 0 are not scored: no weight could change them."""
        importance = torch.zeros(rollouts.token_ids.shape, device=rollouts.token_ids.device)
        active = (advantages != 0).nonzero().flatten()
        self.method.scorer.metrics = {}
        if len(active):
            part = rollouts.select(active)
            scores = checked_importance(self.method.scorer(self.model, part), part, type(self.method.scorer).__name__)
            importance = importance.to(scores.dtype)
            importance[active, rollouts.columns(active)] = scores
        weights = gate_weights(importance, rollouts.reasoning_mask, self.method.gate).to(advantages.dtype)
        return Credit((advantages[:, None] * weights).masked_fill(~rollouts.response_mask, 0.0), importance, weights)

    @torch.no_grad()
    def _with_states(self, rollouts: Rollouts) -> Rollouts:
        """Where old log-probabilities will be needed and the engine left no states: one pass for them and for the scorer."""
        if self.method.update.steps_per_rollout == 1 or rollouts.prediction_states is not None:
            return rollouts
        if not states_fit(self.model, rollouts.token_ids.numel()):
            return rollouts
        states = None
        with evaluating(self.model):
            for rows, part in self._parts(rollouts):
                found = prediction_states(self.model, part.attention_mask, part.token_ids)
                states = found.new_zeros(*rollouts.token_ids.shape, found.shape[-1]) if states is None else states
                states[rows, rollouts.columns(rows)] = found
        return dataclasses.replace(rollouts, prediction_states=states)

    def _with_logprobs(self, rollouts: Rollouts) -> Rollouts:
        """Old log-probabilities where a later step needs them (in a single step the policy's own are the old ones),
        reference ones where the loss has a KL term. The states and the tokens' places in the text have served then."""
        changes: dict[str, Any] = {"prediction_states": None, "token_spans": ()}
        if self.method.update.steps_per_rollout > 1:
            changes["old_logprobs"] = self._detached_logprobs(self.model, rollouts)
        if self.method.loss.kl_coef:
            reference = self._reference[0]
            rollouts = dataclasses.replace(rollouts, prediction_states=None)  # they are the policy's own
            if reference is not None:
                changes["ref_logprobs"] = self._detached_logprobs(reference.to(self.device), rollouts)
            else:  # LoRA: the policy without its adapters
                with self.model.disable_adapter():
                    changes["ref_logprobs"] = self._detached_logprobs(self.model, rollouts)
        return dataclasses.replace(rollouts, **changes)

    @torch.no_grad()
    def _detached_logprobs(self, model: Any, rollouts: Rollouts) -> Tensor:
        """Log-probabilities [B S] of all completions."""
        out = torch.zeros(rollouts.token_ids.shape, device=rollouts.token_ids.device)
        with evaluating(model):
            for rows, part in self._parts(rollouts):
                logprobs = self._logprobs(model, part, part.prediction_states)[0]
                out = out.to(logprobs.dtype)
                out[rows, rollouts.columns(rows)] = logprobs
        return out

    def _parts(self, rollouts: Rollouts) -> Iterator[tuple[Tensor, Rollouts]]:
        """The rows in as many parts as the update has micro-batches."""
        update = self.method.update
        rows = torch.arange(len(rollouts), device=rollouts.token_ids.device)
        for some in split_rows(rows, update.minibatches * update.microbatches):
            if len(some):
                yield some, rollouts.select(some)

    def _decoder(self) -> Any:
        """The decoder of the update's passes: None for the model's own, or that compiled."""
        if self.method.update.compile and self._compiled is None:
            # in a tuple: not a submodule, or every weight would be saved twice. Lengths differ from pass to pass
            self._compiled = (torch.compile(base_model(self.model).get_decoder(), dynamic=True),)
        return self._compiled and self._compiled[0]

    def _logprobs(
        self, model: Any, rollouts: Rollouts, states: Tensor | None = None, decoder: Any = None
    ) -> tuple[Tensor, Tensor]:
        return token_logprobs(
            model,
            rollouts.token_ids,
            rollouts.attention_mask,
            rollouts.response_mask,
            temperature=self.method.sampling.temperature,
            entropy_grad=self.method.loss.entropy_coef > 0,
            states=states,
            decoder=decoder,
        )

    # -- updating the policy ---------------------------------------------------------------------------------------

    def training_step(self, batch: Slot, batch_idx: int) -> Tensor | None:
        """This micro-batch's share of the optimizer step's loss; None where no completion has anything to teach."""
        assert self.experience is not None, "the first slot of a batch of rollouts, or the checkpoint, brings experience"
        method, update = self.method, self.method.update
        rows = self.experience.minibatch(batch, update, self.seed)
        over = Denominators.of(self.experience.rollouts.response_mask[rows], method.sampling.max_new_tokens)
        if method.loss.ignores_zero_advantage:
            rows = rows[self.experience.credit.advantages[rows].ne(0).any(1)]
        # by length, so that passes hold little padding; which one a row is in does not matter
        lengths = self.experience.rollouts.attention_mask[rows].sum(1).tolist()
        buckets = length_buckets(lengths, update.microbatches, update.token_budget)
        if batch.microbatch >= len(buckets):
            return None
        rows = rows[buckets[batch.microbatch]]
        self._sums.add(_padding(lengths, buckets) if batch.microbatch == 0 else {})
        part = self.experience.select(rows)
        mask = part.rollouts.response_mask
        logprobs, entropy = self._logprobs(self.model, part.rollouts, decoder=self._decoder())
        old = part.rollouts.old_logprobs
        out = policy_loss(
            logprobs,
            logprobs.detach() if old is None else old,
            part.credit.advantages,
            mask,
            over,
            method.loss,
            ref_logprobs=part.rollouts.ref_logprobs,
            entropy=entropy,
            sampler_logprobs=part.rollouts.sampler_logprobs,
        )
        correlation = mean_correlation(part.credit.importance, entropy.detach(), part.rollouts.reasoning_mask)
        self._sums.add(out.metrics | {"credit/corr_entropy": correlation})
        self._sums.add({"entropy": (float(entropy.detach().sum()), float(mask.sum()))})
        # shares add up to the step's loss; Lightning averages over accumulate_grad_batches, which is undone here
        self._sums.add({"loss": (float(out.loss.detach()), float(batch.microbatch == 0))})
        return out.loss * update.microbatches

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        if gradients:
            self._pending["grad_norm"] = float(torch.nn.utils.get_total_norm(gradients))
        self._pending["learning_rate"] = optimizer.param_groups[0]["lr"]

    def on_after_backward(self) -> None:
        self._lap()

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
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
        metrics = {"time/update_s": self._update_seconds} | self._pending | self._sums.means() | dropped_metrics(self.trainer)
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
        if self.experience is not None and self.method.update.steps_per_rollout > 1:
            checkpoint["experience"] = self.experience.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if "experience" in checkpoint:
            self.experience = Experience.from_state_dict(checkpoint["experience"], self.device)


def _padding(lengths: list[int], buckets: list[list[int]]) -> dict[str, tuple[float, float]]:
    """How well the passes of an optimizer step are filled."""
    sizes = [len(bucket) * max(lengths[i] for i in bucket) for bucket in buckets]
    return {
        "update/padding": (float(sum(sizes) - sum(lengths)), float(sum(sizes))),
        "update/microbatch_tokens": (float(max(sizes)), 1.0),
        "update/passes": (float(len(sizes)), 1.0),
    }
