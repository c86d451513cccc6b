"""Config -> problem sources."""

from __future__ import annotations

import re
from typing import Any

from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.data.first import FirstProblems
from oar_lightning.data.stream import ProblemSource

FILES = "oar_lightning.data.files.FileProblems"


def build_train(cfg: DictConfig) -> ProblemSource:
    """The training problems. Reads the first one, so that a source that cannot be read fails here.

    Raises:
        ConfigError: where the config has no training problems.
    """
    if cfg.data.get("train") is None:
        raise ConfigError(
            f"data={cfg.data.name} is for evaluation only (data.train=null); choose training problems too, "
            f"e.g. data=math, or data/train=math beside data={cfg.data.name}"
        )
    source, count = _source(cfg.data.train, "data.train"), cfg.data.get("first_problems")
    return source if count is None else FirstProblems(source, count)


def build_eval_sets(cfg: DictConfig) -> dict[str, ProblemSource]:
    """The evaluation sets by name, each read as far as its first problem."""
    nodes = (cfg.data.get("evaluation") or {}).items()
    return {str(name): _source(node, f"data.evaluation.{name}") for name, node in nodes}


def _source(node: Any, where: str) -> ProblemSource:
    if not isinstance(node, DictConfig):
        left_out = f"leave it out: '~{where}'" if where.startswith("data.evaluation.") else "choose one by data=..."
        raise ConfigError(f"{where}={node} is no source of problems, which is a block of settings with _target_; {left_out}")
    try:
        source = instantiate(node, _convert_="all")
    except HydraException as error:
        if not isinstance(error.__cause__, ValueError):
            raise
        inner = re.search(r"full_key: (\S+)", str(error))  # of a source within a mixture
        raise ConfigError(_with_key(inner[1] if inner else where, error.__cause__)) from error
    if not node.get("_target_"):
        raise ConfigError(f"{where} has no _target_, the class of its source; for files add +{where}._target_={FILES}")
    if not isinstance(source, ProblemSource):
        raise ConfigError(
            f"{where}._target_={node.get('_target_')} makes a {type(source).__name__}, which is no ProblemSource: "
            "it needs __iter__() and shuffled(seed, epoch, start)"
        )
    try:  # what cannot be reached or read should fail here, not after a model is loaded
        first = next(iter(source), None)
    except ValueError as error:
        raise ConfigError(_with_key(where, error)) from error
    if first is None:
        raise ConfigError(f"{where} has no problem; name other data")
    return source


def _with_key(where: str, error: BaseException) -> str:
    """A source's message with the full key, where it begins with the name of a setting."""
    message = str(error)
    if message.startswith("data."):
        return message
    return f"{where}.{message}" if re.match(r"[a-z_]+(=|:| must)", message) else f"{where}: {message}"
