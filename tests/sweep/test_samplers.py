"""What a trial is drawn from: together where a sampler draws jointly, whole or not at all, and by its seeds alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntUniformDistribution, UniformDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import create_trial
from support.fake_sweep import open_study, plan, tpe, value

from oar_lightning.sweep.plan import Objective
from oar_lightning.sweep.samplers import TOGETHER, draw_seed
from oar_lightning.sweep.study import SweepStudy
from oar_lightning.sweep.trial import Result

SPACE = {name: UniformDistribution(0.0, 1.0) for name in "xyz"}


class Diagonal(RandomSampler):
    """Draws points with x == y == z."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.number = random.Random(seed).random()

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        return dict(SPACE)

    def sample_relative(self, study: Any, trial: Any, search_space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
        return dict.fromkeys(search_space, self.number)


def made(kind: Callable[..., BaseSampler], seed: int = 0, **settings: Any) -> Callable[[int, str], BaseSampler]:
    return lambda number, parameter: kind(seed=draw_seed(seed, number, parameter), **settings)


def run(study: SweepStudy, trials: int, metrics: Callable[[Mapping[str, Any]], dict[str, float]]) -> list[dict[str, Any]]:
    points = []
    for _ in range(trials):
        claim = study.claim()
        assert claim is not None
        points.append(dict(claim.values))
        study.record(claim, Result("complete", metrics(claim.values)), {})
    assert [trial.params for trial in study.trials()] == points
    return points


def test_what_is_drawn_together_stays_together(tmp_path: Path) -> None:
    points = run(open_study(tmp_path, plan(space=SPACE, sampler=made(Diagonal))), 5, lambda v: {"objective": v["x"]})
    assert all(len(set(point.values())) == 1 for point in points)
    assert len({point["x"] for point in points}) == 5


def test_a_kill_between_two_parameters_leaves_a_whole_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = open_study(tmp_path, plan(space=SPACE, sampler=made(Diagonal)))
    real = study.storage.set_trial_param

    def killed(trial_id: int, name: str, *rest: Any) -> None:
        if name == "y":
            raise KeyboardInterrupt
        real(trial_id, name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(study.storage, "set_trial_param", killed)
        with pytest.raises(KeyboardInterrupt):
            study.claim()
    (half,) = study.trials()
    assert list(half.params) == ["x"]
    again = open_study(tmp_path, plan(space=SPACE, sampler=made(Diagonal, seed=1))).claim()  # as if others had ended since
    assert again is not None
    assert again.values == dict.fromkeys("xyz", half.params["x"])


@pytest.mark.parametrize("sampler", [made(RandomSampler), tpe])
def test_parameters_that_are_drawn_one_by_one_have_seeds_of_their_own(
    sampler: Callable[[int, str], BaseSampler], tmp_path: Path
) -> None:
    """As Optuna's own trials draw them where each asks another sampler."""
    space = {"x": UniformDistribution(0, 1), "y": IntUniformDistribution(0, 9), "z": CategoricalDistribution(["a", "b", 1.5])}
    points = run(
        open_study(tmp_path, plan(space=space, sampler=sampler)), 8, lambda v: {"objective": value(v | {"y": v["y"] / 2})}
    )
    study = optuna.create_study(direction="maximize")
    for number, point in enumerate(points):
        trial = study.ask()
        expected = {}
        for name, distribution in space.items():
            study.sampler = sampler(number, name)
            expected[name] = trial._suggest(name, distribution)
        assert point == expected
        study.tell(trial, value(point | {"y": point["y"] / 2}))


def test_cma_es_draws_what_it_does_in_a_study_of_its_own(tmp_path: Path) -> None:
    """But for the first trial, which is before there is anything that it knows of."""

    def score(point: Mapping[str, float]) -> float:
        return -100 * (point["x"] - point["y"]) ** 2 - (point["z"] - 0.3) ** 2

    points = run(open_study(tmp_path, plan(17, space=SPACE, sampler=made(CmaEsSampler))), 17, lambda v: {"objective": score(v)})
    study = optuna.create_study(direction="maximize")
    study.add_trial(create_trial(params=points[0], distributions=SPACE, value=score(points[0])))
    for number, point in enumerate(points[1:], 1):
        study.sampler = CmaEsSampler(seed=draw_seed(0, number, TOGETHER))
        trial = study.ask()
        assert point == {name: trial.suggest_float(name, 0.0, 1.0) for name in SPACE}
        study.tell(trial, score(point))
    assert len({trial.system_attrs["cma:generation"] for trial in study.trials[1:]}) > 2, "its distribution moves"


def test_the_parameters_of_a_child_of_nsga_ii_are_of_one_pair_of_parents(tmp_path: Path) -> None:
    sampler = made(NSGAIISampler, population_size=4, crossover_prob=1.0, mutation_prob=0.0)
    objectives = [Objective("a", "maximize"), Objective("b", "minimize")]
    space = {name: UniformDistribution(0.0, 1.0) for name in "uvwxyz"}
    study = open_study(tmp_path, plan(16, space=space, objectives=objectives, sampler=sampler))
    run(study, 16, lambda v: {"a": v["x"] + v["u"], "b": v["y"] + v["x"]})
    trials = study.trials()
    by_id = {trial._trial_id: trial for trial in trials}
    children = [trial for trial in trials if "nsga2:parents" in trial.system_attrs]
    assert len(children) == 12
    for child in children:
        parents = [by_id[number].params for number in child.system_attrs["nsga2:parents"]]
        assert all(child.params[name] in [parent[name] for parent in parents] for name in space)


def test_multivariate_tpe_draws_jointly(tmp_path: Path) -> None:
    settings = {"multivariate": True, "n_startup_trials": 3, "warn_independent_sampling": False}
    points = run(
        open_study(tmp_path, plan(space=SPACE, sampler=made(TPESampler, **settings))), 8, lambda v: {"objective": v["x"]}
    )
    study = optuna.create_study(direction="maximize")
    for number, point in enumerate(points):
        if number < 3:
            study.add_trial(create_trial(params=point, distributions=SPACE, value=point["x"]))
            continue
        study.sampler = TPESampler(seed=draw_seed(0, number, TOGETHER), **settings)
        trial = study.ask()
        assert point == {name: trial.suggest_float(name, 0.0, 1.0) for name in SPACE}
        study.tell(trial, point["x"])


def test_a_trial_that_is_repeated_is_of_the_generation_of_the_failed_one(tmp_path: Path) -> None:
    """Else NSGA-II would not see its result."""
    sampler = made(NSGAIISampler, population_size=4)
    objectives = [Objective("a", "maximize"), Objective("b", "minimize")]
    changes: dict[str, Any] = {"space": SPACE, "objectives": objectives, "sampler": sampler, "max_failure_rate": 1.0}
    study = open_study(tmp_path, plan(4, **changes))
    for number in range(4):
        claim = study.claim()
        assert claim is not None
        results = Result("complete", {"a": claim.values["x"], "b": claim.values["y"]})
        study.record(claim, Result("failed", reason="no") if number < 2 else results, {})
    study = open_study(tmp_path, plan(4, retry_failed=True, **changes))
    assert study.claim() is not None
    assert study.claim() is not None
    before, after = study.trials()[:2], study.trials()[4:]
    assert [trial.params for trial in after] == [trial.params for trial in before]
    assert [trial.system_attrs["nsga2:generation"] for trial in after] == [0, 0]
