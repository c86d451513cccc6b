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
from oar_lightning.policy import Policy, fill_in_frozen, leave_out_frozen
from oar_lightning.precision import full_by_default, passes_of
from oar_lightning.randomness import derive_seed
from oar_lightning.ranks import gathered, interleaved, rank, ranks, whole_weights
from oar_lightning.rollout import RolloutStage, SamplingConfig
from oar_lightning.schedule import Schedule
from oar_lightning.scoring import Scorer, checked_importance
from oar_lightning.types import Credit, MathProblem, Rollouts

PHASES = {"generate": "rollout", "reward": "reward", "score": "score", "update": "update"}
"""Phase of a step as ``time/<phase>_s`` names it -> as the totals ``seconds/<phase>`` do."""


@dataclass(frozen=True)
class Passes:
    """The rows of each of this rank's passes of one optimizer step, what all ranks' losses are averaged over, and how many
    passes all ranks have."""

    rows: list[Tensor]
    over: Denominators
    of_all_ranks: int


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
        self._passes: Passes | None = None
        self._pending: dict[str, float] = {}
        self._sums = MetricSums()
        self._update_seconds = 0.0
        self._clock = time.perf_counter()
        self.former_seconds = dict.fromkeys(PHASES, 0.0)
        """Of each phase, in the steps before this one."""

    # -- collecting experience -------------------------------------------------------------------------------------

    def on_train_batch_start(self, batch: Slot, batch_idx: int) -> None:
        if batch.first:
            with whole_weights(self.trainer), passes_of(self.trainer):
                self.experience = self.collect(batch.problems, batch.rollout)
        self._clock = time.perf_counter()

    def collect(self, problems: tuple[MathProblem, ...], step: int) -> Experience:
        """Sample completions, judge them, assign credit. Drawn from (seed, step, problem's place) alone: runs that differ in
        method only start from the same completions, however many ranks share the problems."""
        seeds = [derive_seed(self.seed, "rollout", step, rank() + ranks() * i) for i in range(len(problems))]
        rollouts = self.stage(self.model, problems, self.method.update.group_size, self.method.sampling, seeds, step)
        rollouts = self._with_states(rollouts)
        advantages = self._advantages_over_ranks(rollouts)
        started = time.perf_counter()
        credit = self.assign_credit(rollouts, advantages)
        seconds = time.perf_counter() - started
        times = {name: value for name, value in rollouts.stats.items() if name.startswith("time/")}
        self._pending |= times | {"time/score_s": seconds, "credit/seconds": seconds}
        self._sums.merge([rollout_metrics(rollouts), credit_metrics(rollouts, credit, self.method.gate)])
        self._sums.add(self.stage.rewards.term_metrics(rollouts.reward_terms))
        others = {name: value for name, value in rollouts.stats.items() if not name.startswith(("time/", "rewards/"))}
        self._sums.add_means(others, len(rollouts))
        scored = int(advantages.ne(0).sum())
        self._sums.add_means({f"credit/{name}": value for name, value in self.method.scorer.metrics.items()}, scored)
        return Experience(self._with_logprobs(rollouts), credit)

    def _advantages_over_ranks(self, rollouts: Rollouts) -> Tensor:
        """The advantages [B] of this rank's completions, normalised over the batch of all ranks where that is asked for.

        The groups are put into the order that they have on one rank, so that sums round alike.
        """
        size = rollouts.group_size
        groups = [list(terms.split(size)) for terms in gathered(rollouts.reward_terms.cpu())]
        advantages = self.advantages(torch.cat(interleaved(groups)), size)
        return advantages.view(-1, size)[rank() :: ranks()].flatten().to(rollouts.reward_terms.device)

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
                changes["ref_logprobs"] = self._detached_logprobs(reference.to(self.device, self.model.dtype), rollouts)
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

    @full_by_default()
    def training_step(self, batch: Slot, batch_idx: int) -> Tensor | None:
        """This micro-batch's share of the optimizer step's loss; None where no completion has anything to teach.

        With several ranks, one that has nothing for this slot runs along with a loss of zero: all of them have to take part
        in each backward pass.
        """
        assert self.experience is not None, "the first slot of a batch of rollouts, or the checkpoint, brings experience"
        method, update = self.method, self.method.update
        if batch.microbatch == 0 or self._passes is None:
            self._passes = self._plan_passes(batch)
        over = self._passes.over
        # the loss is a sum of shares; its mean is one over 1 step, whatever the number of passes and ranks
        self._sums.add({"loss": (0.0, float(batch.microbatch == 0 and rank() == 0))} if self._passes.of_all_ranks else {})
        if batch.microbatch >= len(self._passes.rows):
            return self._nothing() if ranks() > 1 else None
        part = self.experience.select(self._passes.rows[batch.microbatch])
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
        self._sums.add({"loss": (float(out.loss.detach()), 0.0)})
        # Lightning averages over accumulate_grad_batches, DeepSpeed once more, and both over ranks, which is undone here
        averaged = 2 if self._trainer and self.trainer.strategy.handles_gradient_accumulation else 1
        return out.loss * update.microbatches**averaged * ranks()

    def _plan_passes(self, slot: Slot) -> Passes:
        """Which of this rank's rows each pass of the slot's optimizer step takes; what the step is averaged over is known
        from all ranks."""
        assert self.experience is not None
        method, update, rollouts = self.method, self.method.update, self.experience.rollouts
        rows = self.experience.minibatch(slot, update, self.seed, rank(), ranks())
        completions, tokens = len(rows), int(rollouts.response_mask[rows].sum())
        if method.loss.ignores_zero_advantage:
            rows = rows[self.experience.credit.advantages[rows].ne(0).any(1)]
        # by length, so that passes hold little padding; which one a row is in does not matter
        lengths = rollouts.attention_mask[rows].sum(1).tolist()
        buckets = length_buckets(lengths, update.microbatches, update.token_budget)
        if buckets:
            self._sums.add(_padding(lengths, buckets))
        counts = gathered((completions, tokens, len(buckets)))
        total = [float(sum(count)) for count in zip(*counts, strict=True)]
        over = Denominators(total[0], max(1.0, total[1]), float(method.sampling.max_new_tokens))
        return Passes([rows[bucket] for bucket in buckets], over, int(total[2]))

    def _nothing(self) -> Tensor:
        """A loss of zero from a pass over two tokens, through the same parameters as every other pass."""
        ids = torch.zeros(1, 2, dtype=torch.long, device=self.device)
        there = torch.ones_like(ids, dtype=torch.bool)
        logprobs, _ = token_logprobs(self.model, ids, there, there & torch.tensor([False, True], device=self.device))
        return 0.0 * logprobs.sum()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._passes is not None and not self._passes.of_all_ranks:
            self.zero_grad()  # as with one rank, where no pass is made: without gradients an optimizer moves nothing
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
        self._sums.fold(max, self._pending)  # times are those of the slowest rank, the others' the same on all
        metrics = MetricSums().merge(gathered(self._sums)).means() | dropped_metrics(self.trainer)
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
        leave_out_frozen(self, checkpoint)
        if self.experience is not None and self.method.update.steps_per_rollout > 1:
            checkpoint["experience"] = gathered(self.experience.state_dict())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        fill_in_frozen(self, checkpoint)
        if "experience" not in checkpoint:
            return
        states = checkpoint["experience"]
        if len(states) == ranks():
            self.experience = Experience.from_state_dict(states[rank()], self.device)
        elif int(checkpoint["global_step"]) % self.method.update.steps_per_rollout:
            raise ValueError(
                f"the checkpoint at step {checkpoint['global_step']} is in the middle of a batch of rollouts of {len(states)} "
                f"ranks and cannot go on with {ranks()}; set trainer.devices to {len(states)} until a checkpoint whose step is "
                f"a multiple of {self.method.update.steps_per_rollout} (update.inner_epochs * update.minibatches)"
            )


def _padding(lengths: list[int], buckets: list[list[int]]) -> dict[str, tuple[float, float]]:
    """How well the passes of an optimizer step are filled."""
    sizes = [len(bucket) * max(lengths[i] for i in bucket) for bucket in buckets]
    return {
        "update/padding": (float(sum(sizes) - sum(lengths)), float(sum(sizes))),
        "update/microbatch_tokens": (float(max(sizes)), 1.0),
        "update/passes": (float(len(sizes)), 1.0),
    }
