"""Blocks of batches, of completions that are there already or that are sampled for the purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.activity import activity
from oar_lightning.common.randomness import derive_seed
from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import Gate
from oar_lightning.credit.scorers import Scorer
from oar_lightning.data.stream import ProblemSource, ProblemStream
from oar_lightning.lab.gradients.batch import Coordinates, Weighted, policy_gradients
from oar_lightning.lab.gradients.sums import GradientSums, added
from oar_lightning.objective.advantage import group_advantages, zero_std_groups
from oar_lightning.objective.loss import LossConfig
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.rollout import RolloutStage
from oar_lightning.training.method import Method
from oar_lightning.types import Rollouts


@dataclass(frozen=True)
class _Rows:
    """Some rows of `Weighted`."""

    advantages: Float[Tensor, "B S"]
    loss_mask: Bool[Tensor, "B S"] | None

    @classmethod
    def of(cls, credit: Weighted, rows: Int[Tensor, " n"], columns: slice) -> _Rows:
        mask = credit.loss_mask
        return cls(credit.advantages[rows, columns], None if mask is None else mask[rows, columns])


def blocks_of(
    model: Any,
    rollouts: Rollouts,
    credit: Mapping[str, Weighted],
    units: Sequence[int],
    blocks: int,
    loss: LossConfig,
    max_completion_length: int,
    token_budget: TokenBudget,
    coordinates: Coordinates,
    references: Sequence[str] = (),
) -> list[GradientSums]:
    """The sums of completions that are there already. The rows of one unit, a problem's completions, are one batch.

    `units[i]` is row i's. Units are dealt to the blocks in order; there are fewer blocks where there are fewer units.
    """
    order = list(dict.fromkeys(units))
    members = {unit: [i for i, u in enumerate(units) if u == unit] for unit in order}
    sums: list[GradientSums] = []
    with activity("gradients", len(order)) as advance:
        for block in torch.arange(len(order)).tensor_split(min(blocks, len(order))):
            found: list[GradientSums] = []
            for unit in (order[i] for i in block.tolist()):
                rows = torch.tensor(members[unit], device=rollouts.token_ids.device)
                part = {name: _Rows.of(weighted, rows, rollouts.columns(rows)) for name, weighted in credit.items()}
                gradients = policy_gradients(
                    model, rollouts.select(rows), part, loss, max_completion_length, token_budget, coordinates
                )
                found = [added([*found, GradientSums.of(list(credit), gradients, references).cpu()])]
                advance(1)
            sums += found
    return sums


class Arm(NamedTuple):
    """A scorer with its gate."""

    scorer: Scorer
    gate: Gate


class Block(NamedTuple):
    """The sums of one block, and facts of its batches: mean reward, tokens a completion, share of groups without a signal."""

    sums: GradientSums
    facts: dict[str, list[float]]


def sample_block(
    model: Any,
    stage: RolloutStage,
    method: Method,
    problems: ProblemSource,
    arms: Mapping[str, Arm],
    block: int,
    batches: int,
    token_budget: TokenBudget,
    coordinates: Coordinates,
    references: Sequence[str] = (),
) -> Block:
    """Sample `batches` batches as training with `method` does, and take each one's gradient under every arm.

    Block b holds the same batches whatever other blocks there are.
    """
    update = method.update
    stream = ProblemStream(problems, 0)
    stream.take(block * batches * update.problems)
    facts: dict[str, list[float]] = {"reward": [], "tokens": [], "silent groups": []}
    found: list[GradientSums] = []
    with activity("gradients", batches) as advance:
        for batch in range(batches):
            asked = stream.take(update.problems)
            seeds = [derive_seed(0, "headroom", block, batch, i) for i in range(len(asked))]
            rollouts = stage(model, asked, update.group_size, method.sampling, seeds, batch)
            advantages = group_advantages(
                rollouts.reward_terms, stage.rewards.weight_vector(), rollouts.group_size, method.advantage
            )
            rollouts = dataclasses.replace(rollouts, advantages=advantages.float())
            credit: dict[str, Weighted] = {
                name: assign_credit(model, rollouts, arm.scorer, arm.gate) for name, arm in arms.items()
            }
            gradients = policy_gradients(
                model, rollouts, credit, method.loss, method.sampling.max_new_tokens, token_budget, coordinates
            )
            sums = GradientSums.of(list(credit), gradients, references).cpu()
            found = [found[0] + sums] if found else [sums]
            facts["reward"].append(float(rollouts.rewards.mean()))
            facts["tokens"].append(float(rollouts.response_mask.sum(1).float().mean()))
            facts["silent groups"].append(float(zero_std_groups(rollouts.rewards, update.group_size).float().mean()))
            advance(1)
    return Block(found[0], facts)
