"""The budgets that `task=plan` proposes and that `auto` starts with."""

from __future__ import annotations

from dataclasses import dataclass

from oar_lightning.planning.config import LEAST_BUDGET
from oar_lightning.planning.job import Job, Planned
from oar_lightning.planning.memory import affordable
from oar_lightning.planning.scoring import row_tokens


@dataclass(frozen=True)
class Proposal:
    """Budgets that fit; None where not even one completion fits, or where there is nothing to bound."""

    update_tokens: int | None
    microbatches: int | None
    rollout_tokens: int | None
    max_batch: int | None
    scorer_tokens: int | None


def set_start(job: Job, planned: Planned, proposal: Proposal) -> None:
    """Set each `auto` budget to its proposed value. Without a proposal it is set to the smallest budget; that of what nothing
    is known of (a scorer, `generate`) stays as it is."""
    job.update.budget.set_start(proposal.update_tokens or job.length)
    if planned.rollout is not None:
        job.sampling.budget.set_start(proposal.rollout_tokens or job.length)
    known = row_tokens(job.scorer, job.batch) is not None
    for budget in job.scorer.budgets:
        budget.set_start(proposal.scorer_tokens or (LEAST_BUDGET if known else budget.tokens))


def propose(job: Job, planned: Planned, room: float) -> Proposal:
    """The largest budgets whose phases fit into `room` bytes, each at most the tokens of a batch of rollouts."""
    plan, everything = planned.plan, job.completions * job.length
    minibatch = -(-job.completions // job.update.minibatches) * job.length
    update = affordable(planned.update, room - plan.without("update's pass", "update"), job.length, minibatch)
    rollout = None
    if planned.rollout is not None:
        rollout = affordable(planned.rollout, room - plan.without("generation", "rollout"), job.length, everything)
    if planned.continuations is not None and rollout is not None:
        left = room - plan.without("continuations", "scoring")
        continued = affordable(planned.continuations, left, job.length, everything)
        rollout = None if continued is None else min(rollout, continued)
    scorer = None
    if planned.scoring is not None:
        scorer = affordable(planned.scoring, room - plan.without("scoring", "scoring"), LEAST_BUDGET, everything)
    return Proposal(
        update,
        None if update is None else -(-minibatch // (update // job.length * job.length)),
        rollout,
        None if rollout is None else rollout // job.length,
        scorer,
    )
