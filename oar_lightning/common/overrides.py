"""The words of a command: what they set, and what of it tells two runs apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

NOT_THE_METHOD = {
    "seed",
    "sweeps",
    "task",
    "name",
    "num_threads",
    "resume",
    "resume_changed",
    "ckpt_path",
    "ckpt_fallback",
    "export_to",
    "output_root",
    "checkpoint_every_n_steps",
    "checkpoints",
    "hydra",
    "logger",
    "loggers",
}
"""First parts of the keys of overrides that do not make two runs different methods."""


DELETED = "deleted"
"""What stands for the value of a key that an override deletes."""


def settings(overrides: Iterable[str]) -> dict[str, str]:
    """Key -> value of Hydra overrides, `DELETED` of `~key`; a later one wins."""
    found = {}
    for item in overrides:
        key, given, value = item.partition("=")
        if given or item.startswith("~"):
            found[key.lstrip("+~")] = DELETED if item.startswith("~") else value
    return found


def is_method(key: str) -> bool:
    """Whether runs that differ in this key differ in method."""
    return key.split(".")[0] not in NOT_THE_METHOD


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Each key -> its last part, or the key itself where several end alike."""
    names = {key: short(key).split("/")[-1] for key in keys}
    count = Counter(names.values())
    return {key: name if count[name] == 1 else key for key, name in names.items()}


def short(key: str) -> str:
    """The last part of a key; for a key that ends in `.name`, the part before."""
    parts = key.split(".")
    return parts[-2] if parts[-1] == "name" and len(parts) > 1 else parts[-1]
