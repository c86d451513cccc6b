"""A run's settings -> what a device holds in each phase, and budgets that fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from oar_lightning.data.stream import UpdatePlan
from oar_lightning.language_model import STATES_BYTES
from oar_lightning.planning import dry_run
from oar_lightning.planning.memory import Item, Plan, Sharding, affordable, through, weight_items
from oar_lightning.planning.policy import PolicySize, no_memory, policy_size, policy_without_weights
from oar_lightning.planning.scoring import (
    Cost,
    Passes,
    plain_copies,
    plain_forward,
    plain_gradient,
    scorer_budget,
    scoring_cost,
)
from oar_lightning.policy import PretrainedPolicy
from oar_lightning.rollout.sampling import DRAW_BYTES, SamplingConfig
from oar_lightning.scoring import Scorer
from oar_lightning.token_budget import TokenBudget

TRACED_TOKENS = 16384
"""Longer passes are taken from the straight line through two of at most this size."""


@dataclass(frozen=True)
class Job:
    """What the memory of a training run depends on.

    `engine_bytes`: of an engine with memory of its own (vLLM), in all phases or, where it sleeps, while it samples.
    `states`, `whole_copy`: as in `weight_items`.
    """

    policy: PretrainedPolicy
    precision: str
    sharding: Sharding
    update: UpdatePlan
    sampling: SamplingConfig
    scorer: Scorer
    prompt: int
    answer: int
    kl: bool = False
    entropy_grad: bool = False
    states: int = 2
    whole_copy: bool = False
    engine_bytes: float | None = None
    engine_sleeps: bool = False

    @property
    def budgets(self) -> tuple[TokenBudget, ...]:
        """Of each phase, as the run's own."""
        return (self.update.budget, self.sampling.budget, *self.scorer.budgets)

    @property
    def length(self) -> int:
        return self.prompt + self.sampling.max_new_tokens

    @property
    def problems(self) -> int:
        """Of one rank."""
        return -(-self.update.problems // self.sharding.ranks)

    @property
    def completions(self) -> int:
        """Of one rank."""
        return self.problems * self.update.group_size

    @property
    def half(self) -> torch.dtype | None:
        """The 16-bit type of the trainer's precision."""
        kind = self.precision.split("-")[0]
        return {"bf16": torch.bfloat16, "16": torch.float16}.get(kind)

    @property
    def weights_dtype(self) -> torch.dtype | None:
        """What the parameters are converted to: DeepSpeed keeps 16-bit ones in mixed precision too."""
        return self.half if self.precision.endswith("true") or self.sharding.zero else None

    @property
    def autocast(self) -> torch.dtype | None:
        return self.half if self.precision.endswith("mixed") and not self.sharding.zero else None

    @property
    def update_tokens(self) -> int:
        """Padded tokens of the largest pass, all completions being as long as they may."""
        completions = -(-self.completions // self.update.minibatches)
        even = -(-completions // self.update.microbatches)
        budget = self.update.budget
        rows = even
        if budget.tokens is not None:
            own = budget.tokens // self.length
            rows = own if budget.auto else max(even, own)  # what exceeds `auto` is divided further
        return min(completions, max(1, rows)) * self.length

    @property
    def rollout_tokens(self) -> int:
        """Prompt and completion tokens of one batch of generation."""
        rows = min(self.completions, self.sampling.max_batch or self.completions)
        if self.sampling.budget.tokens is not None:
            rows = min(rows, self.sampling.budget.tokens // self.length)
        return max(1, rows) * self.length


@dataclass(frozen=True)
class Planned:
    """A plan, and the costs of what budgets bound; `None` for what has no budget."""

    size: PolicySize
    plan: Plan
    update: Cost
    rollout: Cost | None
    scoring: Cost | None
    unknown_scorer: bool
    host_bytes: float


def plan_job(job: Job) -> Planned:
    """Dry-run the policy's passes and add up."""
    with no_memory():
        model = policy_without_weights(job.policy, job.weights_dtype)
        size = policy_size(model)
        cache = dry_run.cache_bytes(model, job.autocast)
        element = next(iter(model.parameters())).element_size()
        update = _by_rows(
            lambda rows: dry_run.update_bytes(model, rows, job.length, job.autocast, job.entropy_grad),
            job.length,
            job.update_tokens,
        )
        logprobs = _by_rows(
            lambda rows: dry_run.logprobs_bytes(model, rows, job.length, job.autocast), job.length, job.update_tokens
        )
        passes = _passes(job, model, size, cache, element)
    reference = policy_size_bytes(job) if job.kl and job.policy.lora is None else 0.0
    masters = job.sharding.zero
    items = weight_items(size, job.sharding, job.states, masters, job.whole_copy, reference)
    scoring = scoring_cost(job.scorer, passes)
    budget = scorer_budget(job.scorer)
    kept = kept_states(job, size.hidden, element)
    rollout: Cost | None = None
    if job.engine_bytes is None:
        forward = passes.forward

        def rollout(tokens: int) -> float:
            return generation_bytes(job, size, tokens, cache, forward)

        items.append(Item("generation", rollout(job.rollout_tokens), ("rollout",)))
    else:
        phases = ("rollout",) if job.engine_sleeps else None
        items.append(Item("vLLM", job.engine_bytes, phases) if phases else Item("vLLM", job.engine_bytes))
    if kept:
        items += [Item("hidden states", kept, ("rollout",)), Item("hidden states", kept, ("scoring", "log-probabilities"))]
    if scoring is not None:
        items.append(Item("scoring", scoring(budget or 0), ("scoring",)))
    if job.kl or job.update.steps_per_rollout > 1:
        items.append(Item("log-probabilities' pass", logprobs(job.update_tokens), ("log-probabilities",)))
    items.append(Item("update's pass", update(job.update_tokens), ("update",)))
    return Planned(
        size,
        Plan(tuple(item for item in items if item.bytes)),
        update,
        rollout,
        scoring if budget is not None else None,
        scoring is None,
        offloaded_bytes(size, job),
    )


def _by_rows(peak: Callable[[int], int], length: int, tokens: int) -> Cost:
    """Bytes of a pass by its tokens, from two dry runs; the larger is the pass asked for unless that is very long."""
    rows = max(2, min(tokens // length, TRACED_TOKENS // length))
    line = through(lambda n: peak(n // length), max(1, rows // 2) * length, rows * length)
    return lambda n: line(max(1, n // length) * length)


def _passes(job: Job, model: Any, size: PolicySize, cache: int, element: int) -> Passes:
    plain = size.plain and job.half is None
    own = job.sampling.max_new_tokens
    rows = max(2, min((scorer_budget(job.scorer) or 4096) // own, TRACED_TOKENS // own))
    if plain:
        forward, gradient, copies = plain_forward(size), lambda tokens: plain_gradient(size) * tokens, plain_copies(size)
    else:
        per_row = through(lambda n: dry_run.forward_bytes(model, n, job.length, job.autocast), 1, 2)
        line = through(lambda n: dry_run.gradient_bytes(model, n, own, 1, job.autocast), max(1, rows // 2), rows)
        forward, gradient, copies = (per_row(2) - per_row(1)) / job.length, lambda tokens: line(tokens / own), 0.0
    return Passes(size, job.prompt, own, job.problems, job.completions, job.answer, cache, forward, gradient, element, copies)


def policy_size_bytes(job: Job) -> float:
    """The reference model: loaded as the policy is, and not converted."""
    with no_memory():
        return float(policy_size(policy_without_weights(replace(job.policy, gradient_checkpointing=False))).bytes)


def kept_states(job: Job, hidden: int, element: int) -> float:
    """Bytes of the hidden states that sampling, or a pass for old log-probabilities, leaves; none where they are too many."""
    from_sampling = job.engine_bytes is None and element >= 4 and job.autocast is None
    tokens = job.completions * (job.sampling.max_new_tokens if from_sampling else job.length)
    if not (from_sampling or job.update.steps_per_rollout > 1) or tokens * hidden * element > STATES_BYTES:
        return 0.0
    return float(job.completions * job.length * hidden * element)


def generation_bytes(job: Job, size: PolicySize, tokens: int, cache: float, forward: float) -> float:
    """A batch of generation: keys and values (those of one layer twice, for each token is joined to those before), logits and
    the float64 probabilities that a token is drawn from, or the pass over the prompts."""
    rows = max(1, tokens // job.length)
    prompts = -(-rows // job.update.group_size) * job.prompt
    kept = rows * job.length * cache * (1 + 1 / size.layers)
    drawing = 4.0 * rows * size.vocabulary + 2 * min(8.0 * rows * size.vocabulary, DRAW_BYTES)
    return max(kept + drawing, prompts * (forward + cache))


def offloaded_bytes(size: PolicySize, job: Job) -> float:
    """What a rank keeps in the host's memory instead."""
    sharding = job.sharding
    optimizer = size.trained * 4.0 * (job.states + 2) * sharding.share(1)  # with float32 parameters and gradients
    return optimizer * sharding.offload_optimizer + size.bytes * sharding.share(3) * sharding.offload_parameters


@dataclass(frozen=True)
class Proposal:
    """Budgets that fit; None where not even one completion does, or where there is nothing to bound."""

    update_tokens: int | None
    microbatches: int | None
    rollout_tokens: int | None
    max_batch: int | None
    scorer_tokens: int | None


def begin_with(job: Job, proposal: Proposal) -> None:
    """Give each budget that is `auto` its proposed value; where not even one completion fits, one completion's."""
    job.update.budget.begin_with(proposal.update_tokens or job.length)
    if job.engine_bytes is None:
        job.sampling.budget.begin_with(proposal.rollout_tokens or job.length)
    for budget in job.scorer.budgets:
        budget.begin_with(proposal.scorer_tokens or budget.tokens)


def propose(job: Job, planned: Planned, room: float) -> Proposal:
    """The largest budgets whose phases fit into `room` bytes, no larger than a batch of rollouts is."""
    plan, everything = planned.plan, job.completions * job.length
    minibatch = -(-job.completions // job.update.minibatches) * job.length
    update = affordable(planned.update, room - plan.without("update's pass", "update"), job.length, minibatch)
    rollout = None
    if planned.rollout is not None:
        rollout = affordable(planned.rollout, room - plan.without("generation", "rollout"), job.length, everything)
    scorer = None
    if planned.scoring is not None:
        scorer = affordable(planned.scoring, room - plan.without("scoring", "scoring"), 256, everything)
    return Proposal(
        update,
        None if update is None else -(-minibatch // (update // job.length * job.length)),
        rollout,
        None if rollout is None else rollout // job.length,
        scorer,
    )
