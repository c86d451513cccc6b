"""Metrics of the unevenness of token weights."""

from __future__ import annotations

import dataclasses

import torch

from oar_lightning.credit.gate import GateConfig, gate_weights, invalid_rows
from oar_lightning.objective.diagnostics import mean_correlation, position_in, sum_and_count, weight_shape
from oar_lightning.objective.metric_sums import MetricSums
from oar_lightning.types import Credit, Rollouts


def credit_metrics(rollouts: Rollouts, credit: Credit, gate: GateConfig) -> MetricSums:
    """Metrics of the weights: means over the completions that were scored (advantage not 0, some reasoning).

    ess_ratio = (sum w)^2 / (n sum w^2); top10_mass = fraction of the weight on the top 10 % of tokens (at least one);
    gini = mean absolute difference / (2 mean); floor_frac = fraction of tokens at the gate's floor; boost_frac = fraction
    above its threshold; mass_error = |sum w / n - 1|; corr_position = correlation of importance with position;
    invalid_frac = fraction of completions that kept weight 1 because their scores were not usable.
    """
    scored = (credit.advantages.ne(0).any(1) & rollouts.reasoning_mask.any(1)).nonzero().flatten()
    metrics = MetricSums()
    if not len(scored):
        return metrics
    mask, weights, importance = rollouts.reasoning_mask[scored], credit.weights[scored], credit.importance[scored]
    raw = gate_weights(importance, mask, dataclasses.replace(gate, renormalize=False))
    at_floor = (raw <= gate.floor) & mask if gate.mode in ("both", "suppress_only") else torch.zeros_like(mask)
    count = mask.sum(1)
    correlation, usable = mean_correlation(importance, position_in(mask), mask)
    per_row = [weight_shape(w[m].double()) for w, m in zip(weights, mask, strict=True)]
    metrics.add({f"credit/{name}": (sum(row[name] for row in per_row), float(len(per_row))) for name in per_row[0]})
    metrics.add(
        {
            "credit/floor_frac": sum_and_count(at_floor.sum(1) / count),
            "credit/boost_frac": sum_and_count(((raw > 1) & mask).sum(1) / count),
            "credit/invalid_frac": sum_and_count(invalid_rows(importance, mask).double()),
            "credit/corr_position": (correlation, usable),
        }
    )
    return metrics
