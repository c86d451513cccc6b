"""The folder of a run. Hydra makes it before anything is checked; it stays empty until the checks have passed, and a command
that is refused takes it away again."""

from __future__ import annotations

import logging
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from oar_lightning.common.run_log import RunLog
from oar_lightning.distributed.launch import is_first_rank

_new: list[Path] = []
"""The folder and those above it, innermost first, that did not exist when the command was started."""


class NoteFolders(Callback):
    """Notes which folders Hydra is about to make (`hydra.callbacks`)."""

    def on_run_start(self, config: DictConfig, **_: object) -> None:
        HydraConfig.instance().set_config(config)  # for ${hydra:...} in the path
        folder = Path(str(config.hydra.run.dir)).absolute()
        _new[:] = [path for path in (folder, *folder.parents) if not path.exists()]


def begin(cfg: DictConfig) -> None:
    """The checks have passed: write the config to `.hydra`, and let the log file begin."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, RunLog):
            handler.begin()
    hydra = HydraConfig.get()
    if not is_first_rank() or hydra.output_subdir is not None:  # Hydra has written it where a subdir is set
        return
    folder = Path(hydra.runtime.output_dir) / ".hydra"
    folder.mkdir(exist_ok=True)
    for name, content in (("config", cfg), ("hydra", HydraConfig.instance().cfg), ("overrides", hydra.overrides.task)):
        OmegaConf.save(content, folder / f"{name}.yaml")


def remove() -> None:
    """The command is refused: remove the folders that were made for it, if they are still empty."""
    for folder in _new:
        try:
            folder.rmdir()
        except OSError:  # another run has begun in it
            return
