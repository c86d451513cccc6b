"""Which rows each micro-batch of an optimizer step takes, and what the whole step is averaged over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from oar_lightning.distributed.ranks import all_gather, rank, world_size
from oar_lightning.objective.loss import Denominators
from oar_lightning.objective.metric_sums import Sums
from oar_lightning.policy.batching import even_chunks
from oar_lightning.training.experience import Experience
from oar_lightning.training.method import Method
from oar_lightning.training.shared_prompts import Prompts
from oar_lightning.training.slots import Slot
from oar_lightning.types import Rollouts


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one slot and their lengths in tokens; empty where a rank has fewer micro-batches than slots."""

    rows: Int[Tensor, " n"] = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    lengths: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Passes:
    """The passes of one optimizer step on this rank: one for each micro-batch (more where memory runs out).

    Args:
        micro_batches: the rows of each pass.
        denominators: what all ranks' losses of this step are averaged over.
        of_all_ranks: the number of passes on all ranks; 0 where no completion has a signal.
        prompts: those that are run once, where the passes are of completions alone.
    """

    micro_batches: Sequence[MicroBatch]
    denominators: Denominators
    of_all_ranks: int
    prompts: Prompts | None = None

    def micro_batch(self, number: int) -> MicroBatch:
        return self.micro_batches[number] if number < len(self.micro_batches) else MicroBatch()


def plan_passes(
    experience: Experience,
    slot: Slot,
    method: Method,
    seed: int,
    prompts_apart: Callable[[Rollouts, Tensor, Method], Prompts | None],
) -> Passes:
    """Divide this rank's rows of the slot's optimizer step into micro-batches. All ranks have to call it.

    Rows are grouped by length, so that passes hold little padding; which micro-batch a row is in does not matter. Completions
    that have exactly zero gradient are left out, but counted in the denominators. Where `prompts_apart` finds
    prompts that are run once, a row's length is that of its completion, and a budget has room for these prompts, too.
    """
    update, rollouts = method.update, experience.rollouts
    rows = experience.minibatch(slot, update, seed, rank(), world_size())
    completions, tokens = len(rows), int(experience.loss_mask[rows].sum())
    if method.leaves_out_zero_advantage(rollouts):
        rows = rows[experience.credit.advantages[rows].ne(0).any(1)]
    prompts, budget, mask = prompts_apart(rollouts, rows, method), update.budget.tokens, rollouts.attention_mask
    if prompts is not None:
        budget, mask = None if budget is None else budget - prompts.tokens, rollouts.response_mask
    lengths = mask[rows].sum(1).clamp(min=1).tolist()
    buckets = even_chunks(lengths, update.microbatches, budget)
    micro_batches = [MicroBatch(rows[bucket], [lengths[i] for i in bucket]) for bucket in buckets]
    all_completions, all_tokens, all_passes = (
        sum(counts) for counts in zip(*all_gather((completions, tokens, len(buckets))), strict=True)
    )
    denominators = Denominators(
        float(all_completions),
        max(1.0, float(all_tokens)),
        float(method.sampling.max_new_tokens),
        max(1.0, float(all_passes)),
    )
    return Passes(micro_batches, denominators, all_passes, prompts)


def largest_pass(passes: Sequence[Sequence[int]]) -> dict[str, float]:
    """Padded tokens of the largest pass over rows of these lengths; of several ranks the largest counts."""
    return {"update/microbatch_tokens": float(max(len(lengths) * max(lengths) for lengths in passes))} if passes else {}


def padding_metrics(passes: Sequence[Sequence[int]]) -> Sums:
    """How well passes over rows of these lengths are filled."""
    if not passes:
        return {}
    sizes = [len(lengths) * max(lengths) for lengths in passes]
    return {
        "update/padding": (float(sum(sizes) - sum(map(sum, passes))), float(sum(sizes))),
        "update/passes": (float(len(sizes)), 1.0),
    }
