"""The first half of a step: problems -> completions -> rewards -> credit. The second half learns from the `Experience`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oar_lightning.common.activity import activity
from oar_lightning.common.randomness import derive_seed
from oar_lightning.credit.assign import assign_credit, rows_to_score
from oar_lightning.credit.metrics import credit_metrics, scorer_metrics
from oar_lightning.credit.step_classes import with_exploring_steps
from oar_lightning.credit.teachers import LaggedWeights
from oar_lightning.distributed.ranks import all_gather, interleaved, rank, world_size
from oar_lightning.objective.advantage import answer_confidence, group_advantages
from oar_lightning.objective.diagnostics import rollout_metrics, sum_and_count
from oar_lightning.objective.entropy import difficulty_weights
from oar_lightning.objective.metric_sums import MetricSums
from oar_lightning.policy.batching import even_chunks
from oar_lightning.policy.casting import cast
from oar_lightning.policy.language_model import evaluating, prediction_states, states_fit
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.rollout import RolloutStage
from oar_lightning.rollout.continuations import RolloutTools
from oar_lightning.training.experience import Experience
from oar_lightning.training.forward import completion_logprobs
from oar_lightning.training.method import Method
from oar_lightning.training.precision import update_precision
from oar_lightning.types import Credit, MathProblem, Rollouts


class Collected(NamedTuple):
    """A batch of rollouts with its credit, and what was measured meanwhile.

    `metrics` are means and totals. `seconds` are the durations of the phases, of which the maximum over ranks is logged.
    """

    experience: Experience
    metrics: MetricSums
    seconds: Mapping[str, float]


class ExperienceCollector:
    """Samples completions, judges them and assigns credit.

    Args:
        model: the policy.
        stage: prompts -> completions -> rewards.
        method: what makes one algorithm different from another.
        seed: of what is sampled.
        reference: the frozen model of a KL term or of the scorer; None where there is none, or with LoRA.
    """

    def __init__(self, model: Any, stage: RolloutStage, method: Method, seed: int, reference: Any = None) -> None:
        self.model = model
        self.stage = stage
        self.method = method
        self.seed = seed
        self.reference = reference
        self.later_reference = LaggedWeights(None, "loss.kl_from", "loss.kl_from=0")
        """The policy at the beginning of a KL term that begins in the course of the run."""
        tools = RolloutTools(stage, method.sampling)
        for component in method.components.values():
            component.use(tools)

    @property
    def budgets(self) -> tuple[TokenBudget, ...]:
        """What bounds the passes of each phase."""
        return (self.method.update.budget, self.method.sampling.budget, *self.method.scorer.budgets)

    def collect(self, problems: tuple[MathProblem, ...], step: int, progress: float = 0.0) -> Collected:
        """Sample completions, judge them, assign credit. `progress`: the fraction of the run's steps that are done.

        The draws depend on (seed, step, the problem's place) alone. So runs that differ in method only begin with the same
        completions, whatever the number of ranks.
        """
        seeds = [derive_seed(self.seed, "rollout", step, rank() + world_size() * i) for i in range(len(problems))]
        rollouts = self.stage(self.model, problems, self.method.update.group_size, self.method.sampling, seeds, step)
        started = time.perf_counter()
        rollouts = self._with_states(rollouts)
        self._follow(step, progress)
        confidence = self._confidence(rollouts, progress)
        logprob_seconds = time.perf_counter() - started
        rollouts = self._with_group_values(rollouts, confidence)
        started = time.perf_counter()
        rollouts = self._with_what_the_scorer_reads(rollouts)
        with activity("scoring"):
            self.method.scorer.learn(self.model, rollouts)
        scorer, by_step = self.method.scorer, self.method.entropy.by_step
        credit = self.assign_credit(rollouts, everything=by_step)  # which steps explore is asked of all completions
        taught = rows_to_score(rollouts, scorer, self.method.gate)
        if by_step:
            credit = with_exploring_steps(self.model, rollouts, credit, taught)
        score_seconds = time.perf_counter() - started
        metrics = rollout_metrics(rollouts).merge([credit_metrics(rollouts, credit, self.method.gate)])
        metrics.add(self.stage.rewards.term_metrics(rollouts.reward_terms))
        others = {name: value for name, value in rollouts.stats.items() if not name.startswith(("time/", "rewards/"))}
        metrics.add_means(others, len(rollouts))
        if confidence is not None:
            metrics.add({"confidence": sum_and_count(confidence[rollouts.answer_mask.any(1)])})
        if credit.entropy_factor is not None:
            inside = credit.entropy_factor[rollouts.reasoning_mask]
            metrics.add({"credit/explore_frac": (float(inside.sum()), float(len(inside)))})
        scored = torch.arange(len(rollouts)) if by_step else taught
        metrics.merge([scorer_metrics(rollouts, scorer, scored), scorer.totals])
        started = time.perf_counter()
        experience = Experience(self._with_logprobs(rollouts), credit)
        logprob_seconds += time.perf_counter() - started
        seconds = {phase: rollouts.stats[f"time/{phase}_s"] for phase in ("generate", "reward")}
        return Collected(experience, metrics, seconds | {"score": score_seconds, "logprobs": logprob_seconds})

    def _follow(self, step: int, progress: float) -> None:
        """Keep the policy of now as the reference where the KL term begins."""
        loss = self.method.loss
        if not loss.later_reference or progress < loss.kl_from:
            self.later_reference.forget()
        else:
            self.later_reference.renew(self.model, step)

    def _confidence(self, rollouts: Rollouts, progress: float) -> Tensor | None:
        """The confidence [B] that each answer was given with; None where it does not count."""
        start = self.method.advantage.confidence_from
        if start is None or progress < start:
            return None
        return answer_confidence(self.detached_logprobs(self.model, rollouts), rollouts.answer_mask)

    def _with_group_values(self, rollouts: Rollouts, confidence: Tensor | None = None) -> Rollouts:
        """Add what follows from the rewards of all ranks (`advantage.scale=batch`): advantages and, where the entropy term
        reads it, each problem's difficulty.

        The groups are put into the order that they have on one rank, so that sums round in the same way.
        """
        size = rollouts.group_size

        def of_all(values: Tensor) -> Tensor:
            return torch.cat(interleaved([list(part.split(size)) for part in all_gather(values.cpu())]))

        def own(values: Tensor) -> Tensor:
            return values.view(-1, size)[rank() :: world_size()].flatten().to(rollouts.reward_terms.device)

        terms = of_all(rollouts.reward_terms)
        difficulty = None
        if self.method.entropy.by_difficulty:
            difficulty = own(difficulty_weights(self._accuracy(terms), size))
        if confidence is not None:
            terms = terms.clone()
            self._accuracy(terms).mul_(of_all(confidence))
        return dataclasses.replace(rollouts, advantages=own(self.advantages(terms, size)), difficulty=difficulty)

    def pass_rates(self, rollouts: Rollouts) -> list[float]:
        """The share of right completions of each problem; NaN where none was judged."""
        return self._accuracy(rollouts.reward_terms).double().view(-1, rollouts.group_size).nanmean(1).tolist()

    def _accuracy(self, reward_terms: Tensor) -> Tensor:
        return reward_terms[:, list(self.stage.rewards.terms).index("accuracy")]

    def advantages(self, reward_terms: Tensor, group_size: int) -> Tensor:
        """The group advantages [B] of rewards [B K]."""
        weights = self.stage.rewards.weight_vector().to(reward_terms.device)
        return group_advantages(reward_terms, weights, group_size, self.method.advantage).float()

    def experience(self, rollouts: Rollouts) -> Experience:
        """What an update learns from, of rollouts that have their group advantages."""
        rollouts = self._with_states(rollouts)
        credit = self.assign_credit(rollouts)
        return Experience(self._with_logprobs(rollouts), credit)

    def assign_credit(self, rollouts: Rollouts, everything: bool = False) -> Credit:
        """The method's token advantages of rollouts that have their group advantages (see `assign_credit`)."""
        rollouts = self._with_what_the_scorer_reads(rollouts)
        with activity("scoring"):
            return assign_credit(self.model, rollouts, self.method.scorer, self.method.gate, everything)

    @torch.no_grad()
    def _with_states(self, rollouts: Rollouts) -> Rollouts:
        """Add prediction states where several steps per batch need old log-probabilities and the engine kept no states.

        One pass then serves both these and the scorer.
        """
        update = self.method.update
        if update.steps_per_rollout == 1 or update.half or rollouts.prediction_states is not None:
            return rollouts
        if not states_fit(self.model, rollouts.token_ids.numel()):
            return rollouts
        states = None
        with evaluating(self.model):
            for rows, found in self._in_parts(
                rollouts, lambda part: prediction_states(self.model, part.attention_mask, part.token_ids)
            ):
                states = found.new_zeros(*rollouts.token_ids.shape, found.shape[-1]) if states is None else states
                states[rows, rollouts.columns(rows)] = found
        return dataclasses.replace(rollouts, prediction_states=states)

    def _with_logprobs(self, rollouts: Rollouts) -> Rollouts:
        """Add what the loss reads, and drop what only scoring has read (prediction states, token spans).

        Old log-probabilities are needed with several steps per batch (in a single step the policy's own are the old ones),
        reference log-probabilities with a KL term.
        """
        update, loss = self.method.update, self.method.loss
        if update.half:  # what scoring has read is in another precision than the loss's ratios are to begin with
            rollouts = dataclasses.replace(rollouts, old_logprobs=None, ref_logprobs=None, prediction_states=None)
        old, ref = rollouts.old_logprobs, rollouts.ref_logprobs  # known where the scorer has read them
        with update_precision(update, rollouts.token_ids.device):
            if update.steps_per_rollout == 1:
                old = None
            elif old is None:
                old = self.detached_logprobs(self.model, rollouts)
            if not loss.kl_coef or (loss.later_reference and not self.later_reference.weights):
                ref = None
            elif ref is None:
                ref = self._reference_logprobs(rollouts)
        return dataclasses.replace(rollouts, old_logprobs=old, ref_logprobs=ref, prediction_states=None, token_spans=())

    def _with_what_the_scorer_reads(self, rollouts: Rollouts) -> Rollouts:
        """Add the log-probabilities under the policy and the reference, as far as the scorer compares with them."""
        scorer, old, ref = self.method.scorer, rollouts.old_logprobs, rollouts.ref_logprobs
        if scorer.needs_old and old is None:
            old = self.detached_logprobs(self.model, rollouts)
        if scorer.needs_reference and ref is None:
            ref = self._reference_logprobs(rollouts)
        return dataclasses.replace(rollouts, old_logprobs=old, ref_logprobs=ref)

    def _reference_logprobs(self, rollouts: Rollouts) -> Tensor:
        """Log-probabilities [B S] under the reference."""
        rollouts = dataclasses.replace(rollouts, prediction_states=None)  # the states are the policy's, not the reference's
        if self.later_reference.weights:
            with self.later_reference.inside(self.model):
                return self.detached_logprobs(self.model, rollouts)
        if self.reference is not None:
            return self.detached_logprobs(cast(self.reference, rollouts.token_ids.device, self.model.dtype), rollouts)
        with self.model.disable_adapter():  # LoRA: the policy without its adapters
            return self.detached_logprobs(self.model, rollouts)

    @torch.no_grad()
    def detached_logprobs(self, model: Any, rollouts: Rollouts) -> Tensor:
        """Log-probabilities [B S] of all completions."""
        out = torch.zeros(rollouts.token_ids.shape, device=rollouts.token_ids.device)

        def work(part: Rollouts) -> Tensor:
            return completion_logprobs(model, part, self.method, part.prediction_states)[0]

        with evaluating(model), activity("log-probabilities"):
            for rows, logprobs in self._in_parts(rollouts, work):
                out = out.to(logprobs.dtype)
                out[rows, rollouts.columns(rows)] = logprobs
        return out

    def _in_parts(self, rollouts: Rollouts, work: Callable[[Rollouts], Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Run `work` on as many parts of the rows as the update has micro-batches, divided as it divides its own.

        Yields the rows of a part and the result.
        """
        update, lengths = self.method.update, rollouts.attention_mask.sum(1).tolist()
        parts = even_chunks(lengths, update.minibatches * update.microbatches, update.budget.tokens)

        def rows(chunk: list[int]) -> Tensor:
            return torch.tensor(chunk, device=rollouts.token_ids.device)

        for chunk, found in update.budget.run_in_chunks(lengths, lambda chunk: work(rollouts.select(rows(chunk))), parts):
            yield rows(chunk), found
