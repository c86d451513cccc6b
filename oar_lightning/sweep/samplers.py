"""Samplers whose draws a restart repeats: each depends on the seed, the trial's number and the finished trials alone."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

RETRY_OF = "retry_of"
"""User attribute of a trial that repeats a failed one: the failed one's number."""


def draw_seed(seed: int, number: int, parameter: str) -> int:
    """The seed of one parameter of one trial.

    By parameter: a process that died between two of them has left the first one in the study, and a generator that begins
    anew would give its number to the second.
    """
    return zlib.crc32(f"{seed}/{number}/{parameter}".encode())


class GridPoints(BaseSampler):
    """The points of a grid in order, the first parameter slowest; Optuna's own takes them at random and repeats some."""

    def __init__(self, choices: Mapping[str, Sequence[Any]]) -> None:
        self.names = list(choices)
        self.points = list(itertools.product(*choices.values()))

    def __len__(self) -> int:
        return len(self.points)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        before = [t for t in study.get_trials(deepcopy=False) if t.number < trial.number and RETRY_OF not in t.user_attrs]
        return self.points[len(before) % len(self)][self.names.index(param_name)]
