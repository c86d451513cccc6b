"""Accuracy of a policy on problems: avg@k, unbiased pass@k, greedy, with bootstrap intervals over problems."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.randomness import derive_seed, generator
from oar_lightning.rollout import RolloutStage, SamplingConfig
from oar_lightning.types import MathProblem, Rollouts


@dataclass(frozen=True)
class EvaluationConfig:
    """What is evaluated, and when.

    Args:
        every_n_steps: optimizer steps between evaluations; 0 evaluates only before and after training.
        problems: problems of each benchmark, the first ones; None for all of a finite one.
        samples: completions per problem at the sampling temperature.
        greedy: also decode greedily, once a problem.
        seed: of the sampling; the same for all runs, so that evaluations are paired.
        heatmap: write the credit heat-map of one group.
    """

    every_n_steps: int = 0
    problems: int | None = 256
    samples: int = 4
    greedy: bool = True
    seed: int = 0
    heatmap: bool = True

    def __post_init__(self) -> None:
        if self.every_n_steps < 0:
            raise ValueError(f"evaluation.every_n_steps must be >= 0 (0: before and after only), got {self.every_n_steps}")
        if self.problems is not None and self.problems < 1:
            raise ValueError(f"evaluation.problems must be >= 1 or null, got {self.problems}")
        if self.samples < 1:
            raise ValueError(f"evaluation.samples must be >= 1, got {self.samples}")


@dataclass(frozen=True)
class Evaluation:
    """Correctness [problems, samples] of sampled completions and [problems] of greedy ones, with the completions."""

    correct: Float[Tensor, "P k"]
    greedy: Float[Tensor, " P"] | None
    rollouts: Rollouts

    def metrics(self) -> dict[str, float]:
        """avg_at_k, pass_at_j for powers of two up to k, greedy accuracy, and the 95 % interval of avg_at_k."""
        k = self.correct.shape[1]
        low, high = self.interval()
        out = {f"avg_at_{k}": float(self.correct.mean()), f"avg_at_{k}_low": low, f"avg_at_{k}_high": high}
        j = 1
        while j < k:
            j *= 2
            if j <= k:
                out[f"pass_at_{j}"] = float(pass_at_k(self.correct, j).mean())
        if self.greedy is not None:
            out["greedy"] = float(self.greedy.mean())
        return out

    def interval(self) -> tuple[float, float]:
        return bootstrap_interval(self.correct.mean(1))


def evaluate(
    model: Any,
    stage: RolloutStage,
    problems: Sequence[MathProblem],
    sampling: SamplingConfig,
    config: EvaluationConfig,
    step: int = 0,
) -> Evaluation:
    """Evaluate without touching the training's random state; a problem counts as correct by the `accuracy` reward."""
    index = list(stage.rewards.terms).index("accuracy")
    seeds = [derive_seed(config.seed, "evaluation", i) for i in range(len(problems))]
    rollouts = stage(model, problems, config.samples, sampling, seeds, step)
    greedy = None
    if config.greedy:
        most_likely = dataclasses.replace(sampling, temperature=0.0)
        greedy = stage(model, problems, 1, most_likely, seeds, step).reward_terms[:, index]
    return Evaluation(rollouts.reward_terms[:, index].view(len(problems), config.samples), greedy, rollouts)


def pass_at_k(correct: Float[Tensor, "P n"], k: int) -> Float[Tensor, " P"]:
    """Unbiased pass@k of each problem: 1 - C(n - c, k) / C(n, k) for c correct of n samples (arXiv 2107.03374)."""
    n = correct.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs 1 <= k <= {n} samples a problem")
    wrong = (n - correct.sum(1)).round().long().tolist()
    return torch.tensor([1 - math.comb(w, k) / math.comb(n, k) for w in wrong])


def bootstrap_interval(values: Float[Tensor, " P"], level: float = 0.95, draws: int = 2000) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean, seeded; problems are the units that are redrawn."""
    rng = generator("bootstrap", len(values))
    index = torch.randint(len(values), (draws, len(values)), generator=rng)
    means = values.double().cpu()[index].mean(1)
    tail = (1 - level) / 2
    return float(means.quantile(tail)), float(means.quantile(1 - tail))
