"""Group-relative advantages (GRPO, arXiv 2402.03300; Dr. GRPO, 2503.20783)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import Fraction, Never, Rule, checked

EPS = 1e-4
"""Added to every standard deviation, as in TRL and the GRPO reference code."""


@checked(
    "advantage",
    Rule(
        lambda scale, aggregation: scale == "group" or aggregation != "normalize_then_sum",
        "advantage.scale={scale} has no effect with advantage.aggregation=normalize_then_sum, which divides by standard "
        "deviations of its own; leave one of them out",
    ),
)
@dataclass(frozen=True)
class AdvantageConfig:
    """How advantages are computed from rewards.

    Args:
        scale: divide by the std of the `group`, of the `batch`, or by nothing (`none`, Dr. GRPO).
        confidence_from: fraction of the run's steps after which an answer's accuracy counts times the confidence it was given
            with, the geometric mean of its tokens' probabilities (ours); None for never.
        aggregation: sum weighted rewards and normalise the sum, or normalise each reward within its group first.
    """

    scale: Literal["group", "batch", "none"] = "group"
    aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"

    @property
    def reads_batch(self) -> bool:
        """Whether a completion's advantage depends on the rewards of other groups."""
        return self.scale == "batch" or self.aggregation == "normalize_then_sum"

    confidence_from: Fraction | Never = None


def combine_rewards(rewards: Float[Tensor, "B K"], weights: Float[Tensor, " K"]) -> Float[Tensor, " B"]:
    """R = sum_k w_k r_k over the scored (non-NaN) entries; a row without any is NaN. Terms of weight 0 score nothing, unless
    all have it."""
    counted = weights != 0 if weights.any() else weights == 0
    unscored = (rewards.isnan() | ~counted).all(1)
    return (torch.nan_to_num(rewards) * weights).sum(1).masked_fill(unscored, torch.nan)


def group_advantages(
    rewards: Float[Tensor, "B K"],
    weights: Float[Tensor, " K"],
    group_size: int,
    config: AdvantageConfig = AdvantageConfig(),
) -> Float[Tensor, " B"]:
    """A = (R - mean) / (std + 1e-4), mean within the group of `group_size` consecutive rows, std unbiased.

    NaN rewards are unscored: left out of means and stds. A row without any score has advantage 0, and exactly 0, whatever the
    rounding, have the rows of a group whose rewards are all equal.
    With `normalize_then_sum` each reward column is standardised within its group, then the weighted sum over the batch.
    Units: reward standard deviations, or rewards with `scale=none`.

    Raises:
        ValueError: where the number of rows is not a multiple of the group size.
    """
    if len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} completions are not whole groups of update.group_size={group_size}")
    if config.aggregation == "normalize_then_sum":
        columns = rewards.T.reshape(-1, group_size)
        standard = _without_silent((columns - _mean(columns)) / (_std(columns) + EPS), columns)
        total = combine_rewards(standard.reshape(rewards.shape[1], -1).T, weights)[None]
        silent = total.nan_to_num().view(-1, group_size).eq(0).all(1, keepdim=True)
        advantages = ((total - _mean(total)) / (_std(total) + EPS)).view(-1, group_size).masked_fill(silent, 0.0).flatten()
    else:
        total = combine_rewards(rewards, weights).view(-1, group_size)
        centred = _without_silent(total - _mean(total), total)
        if config.scale == "group":
            centred = centred / (_std(total) + EPS)
        elif config.scale == "batch":
            centred = centred / (_std(total.reshape(1, -1)) + EPS)
        advantages = centred.flatten()
    return torch.nan_to_num(advantages, nan=0.0)


def answer_confidence(logprobs: Float[Tensor, "B S"], answer: Bool[Tensor, "B S"]) -> Float[Tensor, " B"]:
    """exp(mean log p of the answer's tokens); 1 for a completion without an answer."""
    count = answer.sum(1)
    return (logprobs.double().masked_fill(~answer, 0.0).sum(1) / count.clamp(min=1)).exp()


def zero_std_groups(rewards: Float[Tensor, " B"], group_size: int) -> Bool[Tensor, " G"]:
    """Groups whose scored rewards are all equal."""
    groups = rewards.view(-1, group_size)
    low = groups.nan_to_num(nan=torch.inf).amin(1)
    high = groups.nan_to_num(nan=-torch.inf).amax(1)
    return ~(high > low)


def centred_and_std(
    scores: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"], size: int
) -> tuple[Float[Tensor, "G n S"], Float[Tensor, "G 1 1"]]:
    """The masked scores of each `size` consecutive rows minus their mean, 0 outside the mask; and their standard deviation
    (not an estimate), which is exactly 0 where they are equal: centring leaves rounding errors."""
    values, inside = (x.view(-1, size, x.shape[1]) for x in (scores, mask))
    values = values.masked_fill(~inside, 0.0)
    count = inside.sum((1, 2), keepdim=True).clamp(min=1)
    centred = (values - values.sum((1, 2), keepdim=True) / count).masked_fill(~inside, 0.0)
    std = (centred.square().sum((1, 2), keepdim=True) / count).sqrt()
    top, bottom = (values.masked_fill(~inside, fill) for fill in (-torch.inf, torch.inf))
    differ = top.amax((1, 2), keepdim=True) > bottom.amin((1, 2), keepdim=True)
    return centred, std.masked_fill(~differ, 0.0)


def _without_silent(values: Float[Tensor, "G n"], groups: Float[Tensor, "G n"]) -> Float[Tensor, "G n"]:
    """0 in place of what rounding leaves of groups whose scored entries are all equal."""
    silent = zero_std_groups(groups.flatten(), groups.shape[1])[:, None]
    return values.masked_fill(silent & ~groups.isnan(), 0.0)


def _mean(groups: Float[Tensor, "G n"]) -> Float[Tensor, "G 1"]:
    return groups.nanmean(1, keepdim=True)


def _std(groups: Float[Tensor, "G n"]) -> Float[Tensor, "G 1"]:
    """Unbiased std over the scored entries; 0 where fewer than two are scored."""
    count = (~groups.isnan()).sum(1, keepdim=True)
    variance = (groups - _mean(groups)).square().nansum(1, keepdim=True) / (count - 1).clamp(min=1)
    return variance.sqrt()
