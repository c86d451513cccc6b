"""Metrics of the unevenness of token weights."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.credit.component import group_advantages_of, region_mask
from oar_lightning.credit.gates import Gate
from oar_lightning.credit.gates.bilevel import invalid_rows
from oar_lightning.credit.scorers import Scorer
from oar_lightning.objective.diagnostics import mean_correlation, position_in, sum_and_count, weight_shapes
from oar_lightning.objective.metric_sums import MetricSums
from oar_lightning.types import Credit, Rollouts


def credit_metrics(rollouts: Rollouts, credit: Credit, gate: Gate) -> MetricSums:
    """Metrics of the weights: means over the completions with a token that has an advantage, over the gate's region; and the
    fraction of those without one, no_advantage_frac.

    ess_ratio = (sum w)^2 / (n sum w^2); top10_mass = fraction of the weight on the top 10 % of tokens (at least one); gini
    = mean absolute difference / (2 mean); uniform_frac = fraction whose weights are all equal; mass = sum w / n; mass_error
    = |sum |w| / n - 1|; sign_flips = fraction of tokens whose advantage has another sign than the completion's;
    corr_position = correlation of importance with position; invalid_frac = fraction of completions that kept their group
    advantage because their scores were not usable. Signed weights count by their size, those of a completion without a
    group advantage relative to their mean. The gate adds its own.
    """
    region = region_mask(rollouts, gate.region)
    learns = credit.advantages.ne(0).any(1)
    scored = (learns & region.any(1)).nonzero().flatten()
    metrics = MetricSums()
    metrics.add({"credit/no_advantage_frac": sum_and_count((~learns).double())})
    if not len(scored):
        return metrics
    rows = credit.select(scored)
    mask = region[scored]
    count = mask.sum(1)
    group = group_advantages_of(rollouts)[scored]
    correlation, usable = mean_correlation(rows.importance, position_in(mask), mask)
    shapes = weight_shapes(sizes(rows, mask), mask)
    metrics.add({"credit/uniform_frac": sum_and_count(uniform(rows, mask).double())})
    metrics.add({f"credit/{name}": (float(values.sum()), float(len(values))) for name, values in shapes.items()})
    signal = group != 0
    flips = ((rows.advantages * group[:, None] < 0) & mask).sum(1) / count
    metrics.add(
        {
            "credit/mass": sum_and_count((rows.weights.double().masked_fill(~mask, 0.0).sum(1) / count)[signal]),
            "credit/sign_flips": sum_and_count(flips[signal]),
            "credit/invalid_frac": sum_and_count(unusable(rows.importance, mask, gate).double()),
            "credit/corr_position": (correlation, usable),
        }
    )
    metrics.add(gate.metrics(rows, mask))
    return metrics


def scorer_metrics(rollouts: Rollouts, scorer: Scorer, scored: Int[Tensor, " n"]) -> MetricSums:
    """What a scorer measured of the rows that it has scored: means over these, but forward_equivalents, which is relative to
    all completions; 0 where none had to be scored."""
    metrics, means = MetricSums(), {f"credit/{name}": value for name, value in scorer.metrics.items()}
    passes = means.pop("credit/forward_equivalents", None if len(scored) else 0.0)
    if passes is not None:
        tokens = rollouts.attention_mask.sum(1)
        metrics.add({"credit/forward_equivalents": (passes * float(tokens[scored].sum()), float(tokens.sum()))})
    metrics.add_means(means, len(scored))
    return metrics


def sizes(credit: Credit, mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """The sizes of each completion's weights; of its advantages over their mean where it has no group advantage, so no
    weights."""
    weights, advantages = (x.double().abs().masked_fill(~mask, 0.0) for x in (credit.weights, credit.advantages))
    mean = (advantages.sum(1) / mask.sum(1)).clamp(min=1e-12)
    return torch.where(weights.any(1)[:, None], weights, advantages / mean[:, None])


def uniform(credit: Credit, mask: Bool[Tensor, "B S"]) -> Bool[Tensor, " B"]:
    """Rows whose masked tokens all have the same advantage, but for rounding."""
    largest = credit.advantages.masked_fill(~mask, -torch.inf).amax(1)
    smallest = credit.advantages.masked_fill(~mask, torch.inf).amin(1)
    return largest - smallest <= 1e-6 * torch.maximum(largest.abs(), smallest.abs())


def unusable(scores: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"], gate: Gate) -> Bool[Tensor, " B"]:
    """Rows with a score that the gate cannot read."""
    return (mask & ~scores.isfinite()).any(1) if gate.signed else invalid_rows(scores, mask)
