"""task=plan: the memory of a training run on each device, phase by phase, and token budgets that fit; nothing is loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.tables import ConsoleTable
from oar_lightning.planning.config import PlanConfig
from oar_lightning.planning.empty import no_memory
from oar_lightning.planning.job import Job, Planned, plan_job
from oar_lightning.planning.memory import MEMORY_PHASES
from oar_lightning.planning.policy import policy_without_weights
from oar_lightning.planning.proposal import Proposal, propose, set_start
from oar_lightning.policy.language_model import text_bounds
from oar_lightning.policy.location import check_location
from oar_lightning.policy.out_of_memory import REMEDIES
from oar_lightning.training.method import check_method
from oar_lightning.training.precision import check_update_dtype
from oar_lightning.wiring.plan import read_job
from oar_lightning.wiring.settings import build_method


def prepare(cfg: DictConfig) -> Callable[[], float]:
    """Read the settings.

    Raises:
        ConfigError: for what a plan cannot be made of.
    """
    config: PlanConfig = instantiate(cfg.plan)
    method = build_method(cfg)
    check_update_dtype(method.update, cfg.trainer.get("precision"))
    job = read_job(cfg, config, method)
    if job.scorer.covers == "reasoning" and config.answer_tokens >= job.sampling.max_new_tokens:
        raise ConfigError(
            f"plan.answer_tokens={config.answer_tokens} leaves no token before the answer to score: it must be less than "
            f"rollout.max_new_tokens={job.sampling.max_new_tokens}"
        )
    check_method(method)  # what training refuses needs no plan
    job.update.check(job.sharding.ranks)
    check_location(job.policy.location(), job.policy.revision, tokenizer=False, key=job.policy.key)
    check_length(job)
    return lambda: run(job, config)


def check_length(job: Job) -> None:
    """Raises ConfigError: where not even an empty prompt leaves room for a completion of the greatest length."""
    with no_memory():
        bounds = text_bounds(policy_without_weights(job.policy))
    for what, most in bounds.items():
        if job.sampling.max_new_tokens >= most:
            raise ConfigError(
                f"rollout.max_new_tokens={job.sampling.max_new_tokens} and a prompt are beyond the {most} {what}; lower it, or "
                "choose another policy"
            )


def run(job: Job, config: PlanConfig) -> float:
    """Print the plan, and exit with code 1 where it does not fit; returns the peak in bytes."""
    planned = plan_job(job)
    proposal = propose(job, planned, config.usable_bytes)
    if automatic := [budget.key for budget in job.budgets if budget.auto]:
        set_start(job, planned, proposal)
        planned = plan_job(job)
    console = Console(markup=False)
    console.print(summary(job, planned), soft_wrap=True, highlight=False)
    if forecast := job.scorer.forecast(job.completions * job.sharding.ranks, job.sampling.max_new_tokens):
        console.print(forecast, soft_wrap=True, highlight=False)
    if cost := job.entropy.forecast(job.completions * job.sharding.ranks // job.update.minibatches):
        console.print(cost, soft_wrap=True, highlight=False)
    table(planned).print(console)
    fits = planned.plan.peak <= config.usable_bytes
    always = min(map(planned.plan.of, MEMORY_PHASES))
    console.print(
        f"peak {planned.plan.peak / 1e9:.2f} GB of {config.usable_bytes / 1e9:.2f} GB (plan.card_gb={config.card_gb} less "
        f"plan.reserve={config.reserve}): {'fits' if fits else 'does NOT fit'}",
        soft_wrap=True,
        highlight=False,
    )
    if always > config.usable_bytes:
        console.print(
            f"what is held in every phase (weights, gradients, optimizer) takes {always / 1e9:.2f} GB: no budget helps",
            soft_wrap=True,
            highlight=False,
        )
    if planned.unknown_scorer:
        console.print(f"scoring is not in it: nothing is known of the memory of {type(job.scorer).__name__}", soft_wrap=True)
    if planned.unknown_generation:
        console.print("generation is not in it: a plan knows our own decoding loop and vLLM, not generate", soft_wrap=True)
    if planned.host_bytes:
        console.print(f"in the host's memory: {planned.host_bytes / 1e9:.2f} GB a rank", soft_wrap=True, highlight=False)
    for line in advice(proposal, planned, next((budget.key for budget in job.scorer.budgets), "")):
        console.print(line, soft_wrap=True, highlight=False)
    if automatic:
        console.print(f"{', '.join(automatic)} set to auto: planned with these budgets", soft_wrap=True, highlight=False)
    if not fits:
        sys.exit(1)
    return planned.plan.peak


def summary(job: Job, planned: Planned) -> str:
    size, sharding = planned.size, job.sharding
    how = f"ZeRO-{sharding.stage}" if sharding.zero else "no sharding"
    return (
        f"policy {job.policy.name}: {size.parameters:,} parameters, {size.trained:,} trained; precision {job.precision}, "
        f"{sharding.ranks} rank(s), {how}; {job.completions} completions of {job.prompt} + {job.sampling.max_new_tokens} "
        f"tokens a rank; passes of the update: {job.update_tokens:,} tokens, batches of generation: {job.rollout_tokens:,}"
    )


def table(planned: Planned) -> ConsoleTable:
    """GB of each item in each phase."""
    rows = []
    for name in dict.fromkeys(item.name for item in planned.plan.items):
        held = [
            sum(item.bytes for item in planned.plan.items if item.name == name and phase in item.phases)
            for phase in MEMORY_PHASES
        ]
        rows.append([name, *(f"{x / 1e9:.3f}" if x else "" for x in held)])
    rows.append(["sum", *(f"{planned.plan.of(phase) / 1e9:.3f}" for phase in MEMORY_PHASES)])
    return ConsoleTable("Memory of one device, GB", ("held", *MEMORY_PHASES), rows, sections=[len(rows) - 1])


def advice(proposal: Proposal, planned: Planned, of_scorer: str) -> list[str]:
    """The largest budgets that fit, as overrides; or what fits in no size. `of_scorer`: the key of the scorer's budget."""
    found = {
        "update.token_budget": proposal.update_tokens,
        "update.microbatches": proposal.microbatches,
        "rollout.token_budget": proposal.rollout_tokens,
        "rollout.max_batch": proposal.max_batch,
        of_scorer: proposal.scorer_tokens,
    }
    fitting = " ".join(f"{key}={value}" for key, value in found.items() if value is not None)
    lines = [f"budgets that fit: {fitting}"] if fitting else []
    lost = []
    if proposal.update_tokens is None:
        lost.append("the update of a single completion")
    if planned.rollout is not None and proposal.rollout_tokens is None:
        lost.append("the generation of a single completion")
    if planned.scoring is not None and proposal.scorer_tokens is None:
        lost.append("the scoring of a single completion")
    if lost:
        lines.append(f"too large with any budget: {', '.join(lost)}; {REMEDIES}")
    return lines
