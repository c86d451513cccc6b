"""Checks all jobs of Hydra's grid (`-m gate.tau=0.3,0.5`) before anything is written."""

from __future__ import annotations

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class CheckGrid(Callback):
    """Hydra's own sweeper finds a mistake when its folder is written already, or in a job hours later (`hydra.callbacks`)."""

    def on_multirun_start(self, config: DictConfig, **_: object) -> None:
        if not str(config.hydra.sweeper._target_).endswith(BasicSweeper.__name__):
            return
        from oar_lightning.__main__ import jobs_check
        from oar_lightning.common.config_check import ConfigError
        from oar_lightning.sweep.multirun import GROUP, check_jobs, several_sweeps
        from oar_lightning.wiring.refusals import REFUSED, refuse

        context = GlobalHydra.instance().hydra
        assert context is not None
        loader = context.config_loader
        try:
            overrides = OverridesParser.create(config_loader=loader).parse_overrides(list(config.hydra.overrides.task))
            if any(o.key_or_group == GROUP for o in overrides):  # one sweep file alone has brought its own sweeper
                raise several_sweeps(config.hydra.overrides.task)
            if interval := next((o.input_line for o in overrides if o.is_interval_sweep()), None):
                raise ConfigError(
                    f"{interval}: a grid takes values and no interval; list them with choice(...), or search by a study: "
                    "hydra/sweeper=oar_optuna hydra.sweeper.study_name=mine"
                )
            (jobs,) = BasicSweeper.split_arguments(overrides, None)
            check_jobs(jobs, config, loader, jobs_check())
        except REFUSED as error:
            refuse(error)
