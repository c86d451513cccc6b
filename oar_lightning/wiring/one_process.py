"""Tasks that work in one process refuse to be started as several."""

from __future__ import annotations

from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.distributed.launch import started_tasks


def check_one_process(cfg: DictConfig) -> None:
    """Before work: each of several ranks would do all of it, and write into the same files.

    Raises:
        ConfigError: where srun or torchrun has started several, or the trainer's settings ask for them.
    """
    started, _ = started_tasks() or (1, 1)
    if started > 1:
        raise ConfigError(f"task={cfg.task} works in one process, and {started} were started; start one")
    if asks_for_several(cfg):
        raise ConfigError(
            f"task={cfg.task} works in one process, and trainer.devices={cfg.trainer.get('devices', 1)} and its strategy ask "
            "for several, or for other ones; set trainer=cpu or trainer=gpu"
        )


def asks_for_several(cfg: DictConfig) -> bool:
    """Whether the trainer's settings ask for several processes, or for a strategy of them."""
    trainer = cfg.trainer
    alone = trainer.get("devices", 1) in (1, "1", "auto") and trainer.get("num_nodes", 1) == 1
    return not alone or trainer.get("strategy", "auto") != "auto"
