"""Findings of a lab with made-up numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from support.toy import rollouts_of

from oar_lightning.lab.measures import KINDS, measures_of
from oar_lightning.lab.reliability import reliability, with_ceilings
from oar_lightning.lab.types import Estimate, Findings, Studied, Truth

LENGTH = 20


def findings(names: Sequence[str], problems: int = 4, samples: int = 2) -> Findings:
    """Each estimator knows a little more of the truth than the one before. The last row has no decisive token."""
    rng, count = np.random.default_rng(0), problems * samples
    rollouts = rollouts_of([{"before": [1], "reasoning": [2] * LENGTH, "answer": [3]}] * count)
    shape, mask = rollouts.token_ids.shape, rollouts.reasoning_mask
    studied = Studied(
        rollouts=rollouts,
        problem=tuple(i // samples for i in range(count)),
        ids=tuple(f"{i}" for i in range(count)),
        correct=(True,) * count,
        probabilities=torch.full(shape, 0.5),
        entropy=torch.ones(shape),
        free=mask,
    )

    def noise() -> torch.Tensor:
        return torch.tensor(rng.normal(size=shape)).masked_fill(~mask, 0.0)

    effect = noise()
    effect[-1] *= 1e-3
    halves = (effect + noise() / 9, effect + noise() / 9)
    values = (halves[0] + halves[1]) / 2
    drawn = Truth("monte_carlo", mask, values.abs() > 0.8, values, halves)
    wrong = Truth("first_wrong_step", mask, values.abs() > 1.5, steps=torch.arange(shape[1]).expand(shape) // 4)
    estimates = [
        Estimate(name, scores := effect * n + noise() * len(names), scores, True, 12345.678, 123.4 if n else math.nan)
        for n, name in enumerate(names)
    ]
    measures = with_ceilings(
        measures_of(drawn, estimates, studied), drawn, reliability(drawn, studied, 0.8), estimates, studied
    )
    measures += measures_of(wrong, estimates, studied)
    assert len(measures) > len(KINDS)
    return Findings(studied, (wrong, drawn), tuple(estimates), tuple(measures))
