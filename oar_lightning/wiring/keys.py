"""Top-level keys of a config: those of every task (config.yaml) and those that come with one (task/<its name>.yaml)."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import PurePosixPath

from omegaconf import OmegaConf

from oar_lightning.common.config_check import ConfigError, check_keys
from oar_lightning.common.paths import conf_dir, sweeps_dir
from oar_lightning.wiring.other_names import other_name

ADDED_DATA_KEYS = ("decontaminate", "max_prompt_tokens", "first_problems")
TASK_KEYS = frozenset({"chain", "graph"})
DATA_KEYS = ("name", *sorted(TASK_KEYS), "train", "evaluation", "prompt", *ADDED_DATA_KEYS)
"""Of the block `data`; not all files in conf/data set those that can be added."""


def top_level_keys(task: str) -> frozenset[str]:
    """All keys of a config with this task."""
    return _keys_of("config") | _keys_of(f"task/{task}")


def check_top_level(present: Iterable[str], task: str) -> None:
    """Hold a config's top-level keys against those of its task.

    Raises:
        ConfigError: for a key of another task, an unknown one, or a block of this task that is missing.
    """
    present, known = list(present), top_level_keys(task)
    for key in present:
        if key not in known and (remedy := remedy_for(key)):
            raise ConfigError(f"{remedy} (task={task} now)")
        if key not in known and (other := other_name(key)):
            raise ConfigError(f"unknown key {key}; {other.advice}")
    check_keys(present, known, "")
    if missing := sorted(_keys_of("config").difference(present)):
        raise ConfigError(
            f"{missing[0]} is missing; leave out ~{missing[0]}, or give it anew: '+{missing[0]}={{_target_: ...}}'"
        )
    if missing := sorted(_keys_of(f"task/{task}").difference(present)):
        raise ConfigError(
            f"task={task} reads {missing[0]}, which is missing; choose the task by task={task} on the command line, or by "
            f"`override /task: {task}` in a file's defaults list"
        )


def blocks(task: str) -> frozenset[str]:
    """Top-level keys of a config with this task that hold settings, and cannot be given a value themselves."""
    return (_keys_of("config", blocks_alone=True) | _keys_of(f"task/{task}", blocks_alone=True)) - {"logger", "task"}


def remedy_for(key: str) -> str | None:
    """What to do about a key that only some tasks read; None for any other."""
    if key in _keys_of("config"):
        return None
    names = sorted(path.stem for path in (conf_dir() / "task").glob("*.yaml"))
    tasks = [f"task={name}" for name in names if key in _keys_of(f"task/{name}")]
    return f"{key} is read by {' and '.join(tasks)} only; set the task, or leave {key} out" if tasks else None


@functools.cache
def additional_groups() -> frozenset[str]:
    """Groups that no defaults list names, which Hydra takes with a plus only: `+experiment=oar_g`."""
    groups = {path.name for path in conf_dir().iterdir() if path.is_dir()} | {sweeps_dir().name}
    tasks = [_keys_of(f"task/{path.stem}") for path in (conf_dir() / "task").glob("*.yaml")]
    return frozenset(groups - _keys_of("config").union(*tasks) - {"hydra"})


@functools.cache
def _keys_of(file: str, blocks_alone: bool = False) -> frozenset[str]:
    """Keys of a file in conf/ (its name is without .yaml), of the groups in its defaults list, and of the files named there.
    `blocks_alone`: those that hold settings."""
    content = OmegaConf.to_container(OmegaConf.load(conf_dir() / f"{file}.yaml"))
    assert isinstance(content, dict)
    keys = {str(key) for key, value in content.items() if not blocks_alone or isinstance(value, dict)} - {"defaults", "hydra"}
    for item in content.get("defaults", ()):
        if isinstance(item, dict):
            keys |= {_key_of(str(group)) for group in item if not str(group).startswith("override ")}
        elif item != "_self_":
            keys |= _keys_of(str(PurePosixPath(file).parent / item), blocks_alone)
    return frozenset(keys)


def _key_of(group: str) -> str:
    """The key that an entry of a defaults list fills: the group's own, or the first part of `group@package`."""
    name, _, package = group.lstrip("/").partition("@")
    return package.split(".")[0] or name
