"""Infidelity of scores for random sets of tokens (Yeh et al. 2019, arXiv 1901.09392)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.shares import count_of
from oar_lightning.credit.scorers.base import row_generator, scorable_rows
from oar_lightning.lab.removal.curves import FILLED, RemovalConfig, named
from oar_lightning.lab.removal.sets import Outcome, Sets, evaluate
from oar_lightning.lab.types import Measure
from oar_lightning.policy.attention import masked_positions
from oar_lightning.types import Rollouts


def infidelity(
    outcome: Outcome,
    rollouts: Rollouts,
    scores: Mapping[str, Float[Tensor, "B S"]],
    config: RemovalConfig,
    draws: int = 32,
    key: str = "direct",
) -> list[Measure]:
    """E_S (b I(S) - (f(x) - f(x without S)))^2 / E_S (f(x) - f(x without S))^2 over random sets S, I(S) the sum of scores in S.

    b = the best scale of the completion's scores, so that the value is in [0, 1]: 0 where scores of sets add up to effects, 1
    where they tell nothing. Each of `draws` sets holds one of the config's fractions of the tokens, in turn. NaN where no set
    has an effect. Scores count as they are: where an estimator has scores with a sign, give those toward the outcome.
    """
    rows = scorable_rows(rollouts)
    columns, valid = masked_positions(rollouts.reasoning_mask)
    count, width = len(rows), valid.shape[1]
    drawn = [random_sets(rollouts, row, width, config, draws) for row in rows.tolist()]
    sets = torch.stack(drawn) if drawn else valid.new_zeros(0, draws, width)
    everything = Sets(rows.repeat_interleave(draws), sets.flatten(0, 1))
    nothing = Sets(rows, torch.zeros_like(valid[rows]))
    measures = []
    for fill in config.fills:
        clean = evaluate(outcome, nothing, fill).double()
        effects = clean[:, None] - evaluate(outcome, everything, fill).double().view(count, draws)
        found = torch.full((len(scores), len(rollouts)), math.nan, dtype=torch.float64, device=rows.device)
        for m, of_name in enumerate(scores.values()):
            own = of_name.double().gather(1, columns).masked_fill(~valid, 0.0)[rows]
            found[m, rows] = unexplained((sets * own[:, None]).sum(2), effects)
        title = f"infidelity for random sets, {FILLED[fill]}"
        measures.append(Measure(f"{key}.{fill}.infidelity", title, "low", named(found, scores)))
    return measures


def unexplained(scores: Float[Tensor, "n D"], effects: Float[Tensor, "n D"]) -> Float[Tensor, " n"]:
    """sum (b a - e)^2 / sum e^2 with b = sum a e / sum a^2, but at least 0, row by row; NaN where all effects are 0."""
    along, size = (scores * effects).sum(1), scores.square().sum(1)
    best = torch.where(size > 0, along.clamp(min=0.0) / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)
    return (best[:, None] * scores - effects).square().sum(1) / effects.square().sum(1)


def random_sets(rollouts: Rollouts, row: int, width: int, config: RemovalConfig, draws: int) -> Bool[Tensor, "D R"]:
    """Random sets of a row's reasoning tokens, seeded by its tokens and the config's seed."""
    count = int(rollouts.reasoning_mask[row].sum())
    rng = row_generator(rollouts, row, "sets", config.seed)
    sets = torch.zeros(draws, width, dtype=torch.bool)
    for draw in range(draws):
        fraction = config.fractions[draw % len(config.fractions)]
        sets[draw, torch.randperm(count, generator=rng)[: count_of(fraction, count)]] = True
    return sets.to(rollouts.token_ids.device)
