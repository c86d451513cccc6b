"""Diagnostics of rollouts and of credit assignment, as (sum, count) so that micro-batches and ranks can be added."""

from __future__ import annotations

import operator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.objective.advantage import zero_std_groups
from oar_lightning.objective.metric_sums import MetricSums
from oar_lightning.types import Rollouts


def rollout_metrics(rollouts: Rollouts) -> MetricSums:
    """Rewards, lengths and counts of one batch of rollouts, under TRL's names. Lengths in tokens, EOS included."""
    lengths = rollouts.response_mask.sum(1).double()
    rewards = rollouts.rewards.double()
    groups = rewards.view(-1, rollouts.group_size)
    truncated = torch.zeros_like(lengths) if rollouts.truncated is None else rollouts.truncated.double()
    metrics = MetricSums()
    metrics.add(
        {
            "reward": sum_and_count(rewards),
            "reward_std": sum_and_count(group_std(groups)),
            "frac_reward_zero_std": sum_and_count(zero_std_groups(rewards, rollouts.group_size).double()),
            "completions/mean_length": sum_and_count(lengths),
            "completions/clipped_ratio": sum_and_count(truncated),
            "credit/no_span_frac": (float(sum(answer is None for answer in rollouts.answers)), float(len(rollouts))),
        }
    )
    metrics.fold(min, {"completions/min_length": float(lengths.min())})
    metrics.fold(max, {"completions/max_length": float(lengths.max())})
    metrics.fold(operator.add, {"num_tokens": float(rollouts.attention_mask.sum())})
    return metrics


def group_std(rewards: Float[Tensor, "n G"]) -> Float[Tensor, " n"]:
    """The standard deviation of each group's rewards that are numbers; NaN of fewer than two."""
    count = (~rewards.isnan()).sum(1)
    squares = (rewards - rewards.nanmean(1, keepdim=True)).square().nansum(1)
    return (squares / (count - 1)).sqrt().masked_fill(count < 2, torch.nan)


def sum_and_count(values: Tensor) -> tuple[float, float]:
    """(sum, count) of the values that are not NaN."""
    return float(values.nansum()), float((~values.isnan()).sum())


def weight_shape(w: Float[Tensor, " R"]) -> dict[str, float]:
    """Inequality measures of one completion's weights (all >= 0)."""
    n, total = len(w), float(w.sum())
    ordered = w.sort().values
    ranks = torch.arange(1, n + 1, dtype=w.dtype, device=w.device)
    top = max(1, round(0.1 * n))
    return {
        "ess_ratio": total**2 / (n * float(w.square().sum())) if total > 0 else 1.0,
        "top10_mass": float(ordered[-top:].sum()) / total if total > 0 else 0.0,
        "gini": float((2 * ranks - n - 1) @ ordered) / (n * total) if total > 0 else 0.0,
        "weight_max": float(ordered[-1]),
        "mass_error": abs(total / n - 1),
    }


def mean_correlation(a: Float[Tensor, "B S"], b: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> tuple[float, float]:
    """(sum, count) over completions of the Pearson correlation of two quantities over the masked tokens.

    Completions where either is constant do not count.
    """
    count = mask.sum(1).clamp(min=1)
    centred = []
    for x in (a.double(), b.double()):
        x = x.masked_fill(~mask, 0.0)
        x = x / x.abs().amax(1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)  # being constant is no matter of size
        centred.append((x - (x.sum(1) / count)[:, None]).masked_fill(~mask, 0.0))
    norm = centred[0].norm(dim=1) * centred[1].norm(dim=1)
    usable = norm > 1e-12
    correlation = (centred[0] * centred[1]).sum(1) / norm.clamp(min=1e-12)
    return float(correlation[usable].sum()), float(usable.sum())


def position_in(mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """0, 1, 2, ... along each row's masked tokens."""
    return (mask.long().cumsum(1) - 1).clamp(min=0).double()
