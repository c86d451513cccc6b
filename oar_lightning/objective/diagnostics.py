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
    shapes = weight_shapes(w[None], torch.ones_like(w[None], dtype=torch.bool))
    return {name: float(value) for name, value in shapes.items()}


def weight_shapes(w: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> dict[str, Float[Tensor, " B"]]:
    """Inequality measures of each completion's weights (all >= 0) of masked tokens, of which each has one or more."""
    n, place = mask.sum(1), torch.arange(w.shape[1], dtype=w.dtype, device=w.device)
    ordered = w.masked_fill(~mask, -torch.inf).sort(1, descending=True).values
    ordered = ordered.masked_fill(place >= n[:, None], 0.0)
    total, top = ordered.sum(1), (0.1 * n.double()).round().clamp(min=1)
    above = (n[:, None] - 2 * place - 1) * ordered  # how many weights are below a weight, less how many are above it
    measured = {
        "ess_ratio": (total.square() / (n * ordered.square().sum(1)), 1.0),
        "top10_mass": (ordered.masked_fill(place >= top[:, None], 0.0).sum(1) / total, 0.0),
        "gini": (above.sum(1) / (n * total), 0.0),
    }
    unequal = {name: value.masked_fill(~(total > 0), nothing) for name, (value, nothing) in measured.items()}
    return {**unequal, "weight_max": ordered[:, 0], "mass_error": (total / n - 1).abs()}


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
