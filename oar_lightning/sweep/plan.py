"""The plan of a sweep, and the check that a study in the database has the same plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.study import Study

from oar_lightning.common.config_check import ConfigError
from oar_lightning.sweep.trial import Pruning
from oar_lightning.tracking.renamed import current_name

Settings = dict[str, Any]
"""Values by dotted key."""


@dataclass(frozen=True)
class Objective:
    """A final metric of the trials and its direction: `maximize` or `minimize`."""

    metric: str
    direction: str


@dataclass(frozen=True)
class Plan:
    """The parameters, objectives and number of trials of a sweep.

    Args:
        name: of the study. A study of this name must be continued with the same `settings`, `space`, `objectives`, `search`
            and `pruning`.
        space: swept parameter -> distribution.
        settings: the overrides that all trials share.
        configs: the swept values of an example -> its settings by dotted key, which tell what the files hold that no override
            does. The examples hold all choices; the first is what the others are compared with.
        n_trials: number of all trials, failed and pruned ones included.
        max_failure_rate: fraction of `n_trials` that may fail before the sweep ends.
        sampler: (trial number, parameter or `TOGETHER` or `AFTER`) -> the sampler of that draw, see `samplers.draw`.
        search: the settings of the sampler, its seed included.
        describe: sampled values by parameter -> values by config key, for display.
        retry_failed: repeat the failed trials of earlier starts, as new trials.
    """

    name: str
    space: Mapping[str, BaseDistribution]
    settings: Sequence[str]
    objectives: Sequence[Objective]
    n_trials: int
    sampler: Callable[[int, str], BaseSampler]
    describe: Callable[[Mapping[str, Any]], dict[str, Any]]
    max_failure_rate: float = 0.5
    pruning: Pruning = Pruning()
    retry_failed: bool = False
    search: Mapping[str, Any] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.space:
            raise ConfigError(
                "the sweep has no parameter to vary; give hydra.sweeper.params or an override like gate.tau=choice(0.2,0.4)"
            )
        if not self.objectives:
            raise ConfigError("hydra.sweeper.objectives is empty; name a final metric, e.g. [objective]")
        if self.n_trials < 1:
            raise ConfigError(f"hydra.sweeper.n_trials must be >= 1, got {self.n_trials}")
        if not 0 <= self.max_failure_rate <= 1:
            raise ConfigError(f"hydra.sweeper.max_failure_rate must be in [0, 1], got {self.max_failure_rate}")
        if self.pruning.enabled and len(self.objectives) > 1:
            raise ConfigError("hydra.sweeper.pruning.enabled=true needs a single objective: a median has one direction")
        if self.pruning.enabled and self.objectives[0].direction != "maximize":
            raise ConfigError(
                "hydra.sweeper.pruning.enabled=true ends trials whose accuracy is below the median, but "
                f"hydra.sweeper.direction={self.objectives[0].direction}; leave pruning out, or maximize"
            )

    def check_directions(self, storage: BaseStorage) -> None:
        """Raise ConfigError where the study has other directions: Optuna would load it without a warning.

        Optuna creates a study first and then sets its directions. A kill in between leaves them unset; they are set when the
        study is opened again.
        """
        now = [o.direction for o in self.objectives]
        for summary in storage.get_all_study_summaries():
            before = [d.name.lower() for d in summary.directions]
            if summary.study_name == self.name and before not in (now, ["not_set"]):
                raise ConfigError(
                    f"study {self.name} has the directions {before}, now {now} are asked for; begin another study with "
                    "hydra.sweeper.study_name=..."
                )

    def check_same(self, study: Study) -> None:
        """Store the plan in a new study; compare it with the stored plan of an existing one.

        Raises:
            ConfigError: names the differences.
        """
        space = {name: json.loads(distribution_to_json(d)) for name, d in self.space.items()}
        now = {
            "settings": sorted(self.settings),
            "space": json.loads(json.dumps(space)),
            "objectives": [[o.metric, o.direction] for o in self.objectives],
            "parameters": list(space),
            "search": json.loads(json.dumps(dict(self.search))),
            "pruning": vars(self.pruning),
        }
        before = study.user_attrs.get("plan")
        first, of_choices = self._files
        if before is None:
            study.set_user_attr("config", first)
            study.set_user_attr("choices", of_choices)
            study.set_user_attr("plan", now)
            return
        self._check_files(study.user_attrs.get("config", {}), study.user_attrs.get("choices", {}))
        before = {"parameters": list(before["space"]), **before}
        if self.search.get("sampler") != "grid":  # whose points alone depend on the order
            now.pop("parameters")
        before = {**before, "objectives": [[current_name(metric), direction] for metric, direction in before["objectives"]]}
        if changed := [key for key in now if key in before and now[key] != before[key]]:  # older studies have not all
            changes = "; ".join(f"its {key} were {before[key]} and are now {now[key]}" for key in changed)
            raise ConfigError(
                f"study {self.name} was begun differently: {changes}; repeat the first command, or begin another study with "
                "hydra.sweeper.study_name=..."
            )

    @property
    def _files(self) -> tuple[Settings, dict[str, dict[str, Any]]]:
        """The first example's settings, and what each other one has instead and lacks, as JSON has them."""
        examples: list[tuple[str, Settings]] = [
            (values, json.loads(json.dumps(settings, default=str))) for values, settings in self.configs.items()
        ]
        first = examples[0][1] if examples else {}
        differences = {
            values: {
                "other": {key: value for key, value in settings.items() if key not in first or first[key] != value},
                "without": sorted(first.keys() - settings.keys()),
            }
            for values, settings in examples[1:]
        }
        return first, differences

    def _check_files(self, first: Settings, of_choices: Mapping[str, Mapping[str, Any]]) -> None:
        """Compare what the files held; keys that came or went with another version of the package are no difference."""
        first_now, of_choices_now = self._files
        pairs = [("", first, first_now)] + [
            (f" with {values}", _restored(first, of_choices[values]), _restored(first_now, of_choices_now[values]))
            for values in of_choices_now
            if values in of_choices  # older studies have none
        ]
        for where, before, now in pairs:
            known = sorted(before.keys() & now.keys())
            if changed := [key for key in known if json.dumps(before[key]) != json.dumps(now[key])]:
                shown = ", ".join(f"{key}={now[key]} (then {before[key]})" for key in changed[:10])
                raise ConfigError(
                    f"study {self.name} was begun with other settings in its sweep file or the config{where}: {shown}; give "
                    "the old values, or begin another study with hydra.sweeper.study_name=..."
                )


def _restored(first: Settings, difference: Mapping[str, Any]) -> Settings:
    """An example's settings."""
    return {key: value for key, value in first.items() if key not in difference["without"]} | difference["other"]
