"""`hydra/sweeper=oar_optuna`: hydra-optuna-sweeper's search spaces and samplers, with studies that can be resumed."""

# no `from __future__ import annotations`: dataclass looks names up in sys.modules, where Hydra puts this module too late

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from hydra_plugins.hydra_optuna_sweeper.config import OptunaSweeperConf
from omegaconf import DictConfig


class ResumableOptunaSweeper(Sweeper):
    """Runs the missing trials of a study by `oar_lightning.sweep.multirun.sweep`, which reads its settings from the config."""

    def __init__(self, **settings: Any) -> None:
        pass

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> None:
        # Optuna takes seconds to import, and Hydra imports its plugins for every command
        from oar_lightning.__main__ import jobs_check
        from oar_lightning.sweep.multirun import sweep

        sweep(arguments, self.config, self.hydra_context, self.task_function, jobs_check())


@dataclass
class PruningConf:
    """Median pruning, see `oar_lightning.sweep.trial.Pruning`."""

    enabled: bool = False
    startup_trials: int = 5
    warmup_steps: int = 0


@dataclass
class ResumableOptunaSweeperConf(OptunaSweeperConf):
    """The settings of hydra-optuna-sweeper, with defaults for long trials, and additional ones."""

    _target_: str = "hydra_plugins.oar_sweeps.sweeper.ResumableOptunaSweeper"
    _recursive_: bool = False  # samplers are made anew for every draw

    study_name: str | None = None
    # final metrics of the trials; several need as many directions
    objectives: list[str] = field(default_factory=lambda: ["objective"])
    direction: Any = "maximize"
    # the study's database, an SQLite file; null: optuna.db beside MLflow's SQLite file, or in the current folder
    storage: str | None = None
    # the folder of the trials' folders
    folder: str = "${output_root}/sweeps/${hydra.sweeper.study_name}"
    # seed of the draws of a sampler without its own seed; null: other draws with every start
    seed: int | None = 0
    # trials of one launch; more than 1 needs a launcher that runs them in parallel
    n_jobs: int = 1
    # fraction of n_trials that may fail, over the whole study
    max_failure_rate: float = 0.5
    # repeat the failed trials of earlier starts
    retry_failed: bool = False
    pruning: PruningConf = field(default_factory=PruningConf)


ConfigStore.instance().store(
    group="hydra/sweeper", name="oar_optuna", node=ResumableOptunaSweeperConf, provider="oar_lightning"
)
