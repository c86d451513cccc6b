"""Samplers with reproducible draws: a draw depends on the seed, the trial's number and the finished trials alone."""

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
"""User attribute of a trial that repeats a failed trial: the number of the failed trial."""


def draw_seed(seed: int, number: int, parameter: str) -> int:
    """The seed of one parameter of one trial.

    Each parameter has its own seed. A process that dies between two parameters leaves the first one in the study; with one
    generator for all, a restart would give the first parameter's number to the second.
    """
    return zlib.crc32(f"{seed}/{number}/{parameter}".encode())


class GridPoints(BaseSampler):
    """A sampler that takes the points of a grid in order, the first parameter slowest. Optuna's own takes them at random and
    repeats some."""

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
