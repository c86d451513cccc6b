"""The phases of one step, as a benchmark runs them one by one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from oar_lightning.benchmark.workload import Workload
from oar_lightning.policy.language_model import evaluating
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.slots import Slot, UpdatePlan

TIMED_PHASES = ("rollout", "reward", "logprobs", "scoring", "update")
IN_A_STEP = ("rollout", "reward", "scoring", "update")
"""Phases of a step. With one optimizer step a batch its old log-probabilities are the policy's own; with several they are part
of `scoring`, whatever the method is. `logprobs` is measured separately: one forward pass over the batch, the unit of
forward-equivalents."""
SAME_WORK = ("rollout", "reward", "logprobs")
"""Phases that do the same work whatever the method is: completions depend on the round alone."""


def phases_of_step(
    workload: Workload, module: PolicyOptimization, update: UpdatePlan, number: int
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The phases of one step in order, each with the function that runs it; later phases use the results of earlier ones."""
    held: dict[str, Any] = {}

    def rollout() -> None:
        with workload.precision:
            held["generation"] = workload.sample(number)

    def reward() -> None:
        held["rollouts"] = workload.judge(held["generation"], number)
        held["advantages"] = module.collector.advantages(held["rollouts"].reward_terms, held["rollouts"].group_size)

    def logprobs() -> None:
        part = held["rollouts"]
        with evaluating(module.model), torch.no_grad(), workload.precision:
            token_logprobs(module.model, part.token_ids, part.attention_mask, part.response_mask)

    def scoring() -> None:
        rollouts = dataclasses.replace(held["rollouts"], advantages=held["advantages"])
        with workload.precision:
            module.experience = module.collector.experience(rollouts)

    def optimise() -> None:
        trained = [p for p in module.parameters() if p.requires_grad]
        optimizer = module.make_optimizer(trained, lr=0.0)
        for epoch, minibatch in itertools.product(range(update.inner_epochs), range(update.minibatches)):
            for index in range(update.microbatches):
                with workload.precision:
                    loss = module.training_step(Slot((), number, epoch, minibatch, index), 0)
                if loss is not None:
                    loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()

    yield from zip(TIMED_PHASES, (rollout, reward, logprobs, scoring, optimise), strict=True)
