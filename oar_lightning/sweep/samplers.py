"""Samplers with reproducible draws: a draw depends on the seed, the trial's number and the finished trials alone."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, _get_single_value
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

RETRY_OF = "retry_of"
"""User attribute of a trial that repeats a failed trial: the number of the failed trial."""


POINT = "fixed_params"
"""System attribute of a trial (Optuna's, for trials that are enqueued): its values of all parameters."""

TOGETHER, AFTER = "", "after"
"""What a sampler is made for where that is no parameter: what is drawn jointly, and what a trial's result changes."""


def draw_seed(seed: int, number: int, parameter: str) -> int:
    """The seed of one parameter of one trial, or of those that are drawn together (`TOGETHER`)."""
    return zlib.crc32(f"{seed}/{number}/{parameter}".encode())


def draw(
    study: Study, trial_id: int, space: Mapping[str, BaseDistribution], sampler: Callable[[str], BaseSampler]
) -> dict[str, Any]:
    """A trial's point. What the sampler draws jointly (CMA-ES, multivariate TPE) comes from one draw, and parents that it
    chooses (NSGA-II) are those of all parameters.

    Args:
        study: whose finished trials the sampler learns from.
        trial_id: of a trial without parameters, where samplers note what they have chosen.
        space: parameter -> distribution.
        sampler: parameter or `TOGETHER` -> a sampler for it.
    """
    joint, trial = sampler(TOGETHER), study._storage.get_trial(trial_id)
    drawn = joint.sample_relative(study, trial, joint.infer_relative_search_space(study, trial))
    trial = study._storage.get_trial(trial_id)  # with what was noted

    def value(name: str, distribution: BaseDistribution) -> Any:
        if distribution.single():
            return _get_single_value(distribution)
        if name in drawn:
            return drawn[name]
        return sampler(name).sample_independent(study, trial, name, distribution)

    values = {name: value(name, distribution) for name, distribution in space.items()}
    return {name: space[name].to_external_repr(space[name].to_internal_repr(value)) for name, value in values.items()}


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
