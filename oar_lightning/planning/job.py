"""Plans the memory of a run from its settings: the bytes of a device in each phase, and token budgets that fit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from oar_lightning.credit.scorers import Scorer
from oar_lightning.objective.entropy import EntropyControl, Unadapted
from oar_lightning.planning import dry_run
from oar_lightning.planning.config import TRACED_TOKENS
from oar_lightning.planning.empty import no_memory
from oar_lightning.planning.memory import (
    MEMORY_PHASES,
    Cost,
    Item,
    Plan,
    Sharding,
    piecewise,
    through,
    weight_items,
)
from oar_lightning.planning.policy import PolicySize, policy_size, policy_without_weights
from oar_lightning.planning.scoring import (
    CONTINUING,
    FREE,
    Batch,
    continues,
    continuing_inputs,
    dry_run_budgets,
    dry_run_inputs,
    innermost,
    most_tokens,
    own_model_items,
    row_tokens,
    scorer_budget,
    teacher_items,
)
from oar_lightning.policy.casting import MIXED, TRUE
from oar_lightning.policy.language_model import STATES_BYTES, can_share_prefixes
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.rollout.continuations import batch_tokens
from oar_lightning.rollout.sampling import SamplingConfig
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.types import Rollouts


@dataclass(frozen=True)
class Job:
    """The settings of a training run that its memory depends on.

    `prompt`, `answer`, `conclusion`: tokens of the longest prompt, answer and conclusion (the text that leads up to the answer
    and is not scored). `engine_bytes`: memory that an engine manages by itself (vLLM), held in all phases or, where the engine
    sleeps, while it samples. `own_loop`: whether `CachedEngine` samples where the policy's cache allows it. `kl`: whether there
    is a reference; `later_reference`: whether it is a copy of the trained weights, made in the course of the run. `states`,
    `whole_copy`: see `weight_items`.
    """

    policy: PretrainedPolicy
    precision: str
    sharding: Sharding
    update: UpdatePlan
    sampling: SamplingConfig
    scorer: Scorer
    prompt: int
    answer: int
    conclusion: int = 0
    kl: bool = False
    later_reference: bool = False
    entropy_grad: bool = False
    entropy: EntropyControl = field(default_factory=Unadapted)
    states: int = 2
    whole_copy: bool = False
    engine_bytes: float | None = None
    own_loop: bool = True
    engine_sleeps: bool = False

    @property
    def budgets(self) -> tuple[TokenBudget, ...]:
        """The run's budgets for update, sampling and scoring."""
        return (self.update.budget, self.sampling.budget, *self.scorer.budgets)

    @property
    def length(self) -> int:
        return self.prompt + self.sampling.max_new_tokens

    @property
    def problems(self) -> int:
        """Problems of one rank in a batch of rollouts."""
        return -(-self.update.problems // self.sharding.ranks)

    @property
    def completions(self) -> int:
        """Completions of one rank in a batch of rollouts."""
        return self.problems * self.update.group_size

    @property
    def batch(self) -> Batch:
        return Batch(
            self.prompt, self.sampling.max_new_tokens, self.answer, self.conclusion, self.update.group_size, self.problems
        )

    @property
    def weights_dtype(self) -> torch.dtype | None:
        """The dtype to which parameters are converted; None: not converted. DeepSpeed keeps 16-bit parameters in mixed
        precision, too."""
        return TRUE.get(self.precision) or (MIXED.get(self.precision) if self.sharding.zero else None)

    @property
    def autocast(self) -> torch.dtype | None:
        return None if self.sharding.zero else MIXED.get(self.precision)

    @property
    def update_autocast(self) -> torch.dtype | None:
        """Of the passes whose log-probabilities the loss reads."""
        return torch.bfloat16 if self.update.half else self.autocast

    @property
    def update_tokens(self) -> int:
        """Padded tokens of the update's largest pass, where every completion has the greatest length."""
        completions = -(-self.completions // self.update.minibatches)
        even_rows = -(-completions // self.update.microbatches)
        budget = self.update.budget
        rows = even_rows
        if budget.tokens is not None:
            budget_rows = budget.tokens // self.length
            rows = budget_rows if budget.auto else max(even_rows, budget_rows)  # `auto` divides what exceeds it
        return min(completions, max(1, rows)) * self.length

    def continued_tokens(self, model: Any) -> int:
        """Prompt and completion tokens of one batch of continuations."""
        bounded = self.sampling.max_batch or self.sampling.budget.tokens
        return self.rollout_tokens if bounded else batch_tokens(model, self.rollout_tokens)

    @property
    def rollout_tokens(self) -> int:
        """Prompt and completion tokens of one batch of generation."""
        rows = min(self.completions, self.sampling.max_batch or self.completions)
        if self.sampling.budget.tokens is not None:
            rows = min(rows, self.sampling.budget.tokens // self.length)
        return max(1, rows) * self.length


@dataclass(frozen=True)
class Planned:
    """A plan, and the costs of update, rollout, scoring and continuations by their token budgets; `None` where there is no
    budget."""

    size: PolicySize
    plan: Plan
    update: Cost
    rollout: Cost | None
    scoring: Cost | None
    continuations: Cost | None
    unknown_scorer: bool
    unknown_generation: bool
    host_bytes: float


def plan_job(job: Job) -> Planned:
    """Dry-run the policy's passes and add their memory to that of weights and optimizer."""
    with no_memory():
        model = policy_without_weights(job.policy, job.weights_dtype)
        size = policy_size(model)
    element = next(iter(model.parameters())).element_size()
    own_loop = job.engine_bytes is None and job.own_loop and can_share_prefixes(model)
    kept = kept_states(job, size.hidden, element, own_loop)
    update = _update_cost(job, model)
    rollout = _rollout_cost(job, model, kept) if own_loop else None
    budget, known = scorer_budget(job.scorer), row_tokens(job.scorer, job.batch) is not None
    scoring = _scoring_cost(job, model, budget) if known and budget else None
    samples_more = continues(job.scorer)
    continuations = _continuations_cost(job, model) if samples_more and rollout is not None else None
    copied = size.trained_bytes if job.later_reference else size.bytes  # a model is converted as the policy is
    reference = float(copied) if job.kl and (job.policy.lora is None or job.later_reference) else 0.0
    items = weight_items(size, job.sharding, job.states, job.sharding.zero, job.whole_copy, reference)
    items += [*teacher_items(job.scorer, size), *own_model_items(job.scorer, size)]
    if rollout is not None:
        items.append(Item("generation", rollout(job.rollout_tokens), ("rollout",)))
    elif job.engine_bytes is not None:
        items.append(Item("vLLM", job.engine_bytes, _awake(job.engine_sleeps, samples_more)))
    if kept:  # the completions that are scored are a copy, with their states
        items += [Item("hidden states", 2 * kept, ("scoring",)), Item("hidden states", kept, ("log-probabilities",))]
    if scoring is not None and budget:
        items.append(Item("scoring", scoring(budget), ("scoring",)))
    if continuations is not None:
        items.append(Item("continuations", continuations(job.continued_tokens(model)), ("scoring",)))
    if job.kl or job.scorer.needs_old or job.update.steps_per_rollout > 1:
        logprobs = _pass_cost(job, lambda texts: dry_run.logprobs_bytes(model, texts, job.update_autocast))
        items.append(Item("log-probabilities' pass", logprobs(job.update_tokens), ("log-probabilities",)))
    items.append(Item("update's pass", update(job.update_tokens), ("update",)))
    return Planned(
        size,
        Plan(tuple(item for item in items if item.bytes)),
        update,
        rollout,
        scoring,
        continuations,
        not known and not samples_more and not isinstance(innermost(job.scorer), FREE),
        job.engine_bytes is None and not own_loop,
        offloaded_bytes(size, job),
    )


def _update_cost(job: Job, model: Any) -> Cost:
    return _pass_cost(job, lambda texts: dry_run.update_bytes(model, texts, job.update_autocast, job.entropy_grad))


def _pass_cost(job: Job, peak: Callable[[Rollouts], int]) -> Cost:
    """Bytes of a pass by its tokens: the line through two dry runs. The larger one is of `update_tokens`, or of
    `TRACED_TOKENS` where that is less."""
    batch = job.batch

    def of_rows(rows: int) -> int:
        return peak(dry_run.completions(rows, batch.group_size, batch.prompt, batch.completion))

    rows = max(2, min(job.update_tokens // job.length, TRACED_TOKENS // job.length))
    line = through(of_rows, max(1, rows // 2), rows)
    return lambda tokens: line(max(1, tokens // job.length))


def _rollout_cost(job: Job, model: Any, kept: float) -> Cost:
    """Bytes of a batch of generation by its tokens. They include the hidden states that earlier batches left, and at the end
    the joined states of all batches."""
    batch = job.batch

    def of_rows(rows: int) -> float:
        texts = dry_run.completions(rows, batch.group_size, batch.prompt, batch.completion)
        peak = dry_run.generation_bytes(model, texts, job.sampling, bool(kept), job.autocast)
        fraction = rows / job.completions
        return max(peak + (1 - fraction) * kept, 2 * kept if fraction < 1 else 0.0)

    line = piecewise(functools.cache(of_rows), sorted({1, job.rollout_tokens // job.length, job.completions}))
    return lambda tokens: line(min(job.completions, max(1, tokens // job.length)))


def _awake(sleeps: bool, samples_more: bool) -> Sequence[str]:
    """The phases in which an engine with its own memory holds it."""
    if not sleeps:
        return MEMORY_PHASES
    return ("rollout", "scoring") if samples_more else ("rollout",)


def _continuations_cost(job: Job, model: Any) -> Cost:
    """Bytes of a batch of continuations by its tokens: of the shortest prefixes, the prompts, or of the longest ones. Where
    that is more, the bytes of the scorer's passes over the completions themselves, one after the other."""
    batch, scorer = job.batch, innermost(job.scorer)
    assert isinstance(scorer, CONTINUING)
    passes = dry_run.scoring_bytes(model, *continuing_inputs(scorer, batch), job.autocast)

    def of_rows(rows: int) -> float:
        sizes = {(batch.prompt, batch.completion), (batch.length - 1, 1)}
        texts = [dry_run.completions(rows, scorer.samples, *size) for size in sizes]
        return float(max(passes, *(dry_run.generation_bytes(model, t, job.sampling, False, job.autocast) for t in texts)))

    line = piecewise(functools.cache(of_rows), sorted({1, max(2, job.continued_tokens(model) // job.length)}))
    return lambda tokens: line(max(1, tokens // job.length))


def _scoring_cost(job: Job, model: Any, budget: int) -> Cost:
    """Bytes of scoring by token budget: dry runs of some budgets, and straight lines between them. A budget above
    `most_tokens` costs no more than `most_tokens`."""

    @functools.cache
    def of_budget(tokens: int) -> int:
        scorer, texts = dry_run_inputs(job.scorer, job.batch, tokens)
        return dry_run.scoring_bytes(model, scorer, texts, job.autocast)

    most = most_tokens(job.scorer, job.batch)
    line = piecewise(of_budget, dry_run_budgets(job.scorer, job.batch, budget))
    return lambda tokens: line(min(tokens, most))


def kept_states(job: Job, hidden: int, element: int, own_loop: bool) -> float:
    """Bytes of the hidden states kept from sampling, or from a pass for old log-probabilities; 0 where they are too many."""
    from_sampling = own_loop and job.sampling.keep_states and element >= 4 and job.autocast is None
    tokens = job.completions * (job.sampling.max_new_tokens if from_sampling else job.length)
    from_pass = job.update.steps_per_rollout > 1 and not job.update.half
    if not (from_sampling or from_pass) or tokens * hidden * element > STATES_BYTES:
        return 0.0
    return float(job.completions * job.length * hidden * element)


def offloaded_bytes(size: PolicySize, job: Job) -> float:
    """Bytes that a rank offloads to the host's memory."""
    sharding = job.sharding
    optimizer = size.trained * 4.0 * (job.states + 2) * sharding.fraction(1)  # with float32 parameters and gradients
    return optimizer * sharding.offload_optimizer + size.bytes * sharding.fraction(3) * sharding.offload_parameters
