"""What a configured scorer, gate or loss is called in tags, descriptions and tables."""

from __future__ import annotations

import re

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from oar_lightning.common.paths import conf_dir


def component_name(cfg: DictConfig, group: str) -> str:
    """The option of a group, or, where another class was put in its place (``scorer._target_=my.Scorer``), that class's name
    in snake case."""
    option = HydraConfig.get().runtime.choices.get(group)
    target = str(cfg[group].get("_target_", option))
    if option is not None and _target_of(group, option) in (target, None):
        return str(option)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", target.rpartition(".")[2]).lower()


def _target_of(group: str, option: str) -> str | None:
    """The class of an option; None where its file is elsewhere (``--config-dir``), or leaves that to another file."""
    file = conf_dir() / group / f"{option}.yaml"
    return OmegaConf.select(OmegaConf.load(file), "_target_") if file.exists() else None
