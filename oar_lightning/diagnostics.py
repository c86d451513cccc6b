"""Numbers that say what credit assignment did; reduced as (sum, count) so that micro-batches and ranks add up."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.advantage import zero_std_groups
from oar_lightning.gating import GateConfig, gate_weights, invalid_rows
from oar_lightning.types import Credit, Rollouts

Sums = Mapping[str, tuple[float, float]]

Fold = Callable[[float, float], float]


class MetricSums:
    """Metrics under construction: means as name -> (sum, count), totals and extremes as name -> (how, value)."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}
        self._folded: dict[str, tuple[Fold, float]] = {}

    def add(self, metrics: Sums) -> None:
        for name, (total, count) in metrics.items():
            old_total, old_count = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (old_total + total, old_count + count)

    def add_means(self, means: Mapping[str, float], count: float) -> None:
        """Add means that were taken over `count` things each."""
        self.add({name: (mean * count, count) for name, mean in means.items()})

    def fold(self, how: Fold, values: Mapping[str, float]) -> None:
        """Add values of which `how` (`min`, `max`, `operator.add`) makes one."""
        for name, value in values.items():
            self._folded[name] = how, how(self._folded[name][1], value) if name in self._folded else value

    def merge(self, others: Iterable[MetricSums]) -> MetricSums:
        """Add what others have, such as those of other ranks."""
        for other in others:
            self.add(other._sums)
            for name, (how, value) in other._folded.items():
                self.fold(how, {name: value})
        return self

    def means(self) -> dict[str, float]:
        """Sum / count of everything added, totals and extremes; names never counted are left out."""
        means = {name: total / count for name, (total, count) in self._sums.items() if count}
        return means | {name: value for name, (_, value) in self._folded.items()}


def rollout_metrics(rollouts: Rollouts) -> MetricSums:
    """Rewards, lengths and counts of one batch of rollouts, under TRL's names. Lengths in tokens, EOS included."""
    lengths = rollouts.response_mask.sum(1).double()
    rewards = rollouts.rewards.double()
    groups = rewards.view(-1, rollouts.group_size)
    truncated = torch.zeros_like(lengths) if rollouts.truncated is None else rollouts.truncated.double()
    found = MetricSums()
    found.add(
        {
            "reward": _sum_and_count(rewards),
            "reward_std": _sum_and_count(groups.std(1)),
            "frac_reward_zero_std": _sum_and_count(zero_std_groups(rewards, rollouts.group_size).double()),
            "completions/mean_length": _sum_and_count(lengths),
            "completions/clipped_ratio": _sum_and_count(truncated),
            "credit/no_span_frac": (float(sum(answer is None for answer in rollouts.answers)), float(len(rollouts))),
        }
    )
    found.fold(min, {"completions/min_length": float(lengths.min())})
    found.fold(max, {"completions/max_length": float(lengths.max())})
    found.fold(operator.add, {"num_tokens": float(rollouts.attention_mask.sum())})
    return found


def _sum_and_count(values: Tensor) -> tuple[float, float]:
    """Of the values that are not NaN."""
    return float(values.nansum()), float((~values.isnan()).sum())


def credit_metrics(rollouts: Rollouts, credit: Credit, gate: GateConfig) -> MetricSums:
    """How uneven the weights are: means over the completions that were scored (advantage not 0, some reasoning).

    ess_ratio = (sum w)^2 / (n sum w^2); top10_mass = share of the weight on the top 10 % of tokens (at least one);
    gini = mean absolute difference / (2 mean); floor_frac = share of tokens at the gate's floor; boost_frac = share above
    its threshold; mass_error = |sum w / n - 1|; corr_position = correlation of importance with position. invalid_frac:
    share of completions whose scores were not usable, so that they kept weight 1.
    """
    scored = (credit.advantages.ne(0).any(1) & rollouts.reasoning_mask.any(1)).nonzero().flatten()
    found = MetricSums()
    if not len(scored):
        return found
    mask, weights, importance = rollouts.reasoning_mask[scored], credit.weights[scored], credit.importance[scored]
    raw = gate_weights(importance, mask, dataclasses.replace(gate, renormalize=False))
    at_floor = (raw <= gate.floor) & mask if gate.mode in ("both", "suppress_only") else torch.zeros_like(mask)
    count = mask.sum(1)
    correlation, usable = mean_correlation(importance, position_in(mask), mask)
    per_row = [weight_shape(w[m].double()) for w, m in zip(weights, mask, strict=True)]
    found.add({f"credit/{name}": (sum(row[name] for row in per_row), float(len(per_row))) for name in per_row[0]})
    found.add(
        {
            "credit/floor_frac": _sum_and_count(at_floor.sum(1) / count),
            "credit/boost_frac": _sum_and_count(((raw > 1) & mask).sum(1) / count),
            "credit/invalid_frac": _sum_and_count(invalid_rows(importance, mask).double()),
            "credit/corr_position": (correlation, usable),
        }
    )
    return found


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
        centred.append((x - (x.sum(1) / count)[:, None]).masked_fill(~mask, 0.0))
    norm = centred[0].norm(dim=1) * centred[1].norm(dim=1)
    usable = norm > 1e-12
    correlation = (centred[0] * centred[1]).sum(1) / norm.clamp(min=1e-12)
    return float(correlation[usable].sum()), float(usable.sum())


def position_in(mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """0, 1, 2, ... along each row's masked tokens."""
    return (mask.long().cumsum(1) - 1).clamp(min=0).double()
