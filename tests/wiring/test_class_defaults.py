"""A class that is made in Python does what its file in conf/ says: parts of a method have the same defaults in both."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pydoc import locate
from typing import Any

import pytest
import yaml

from oar_lightning.common.paths import conf_dir

PARTS = ("curriculum", "entropy", "gate", "scorer")
"""Not `loss`, whose files are variants of one class, nor data sets."""
VARIANTS = {"oracle_signed"}
"""Files that set another class's parts otherwise than its own file does."""
STAGES = ("advantage", "answer", "rollout")
"""In config.yaml. The other stages' classes do less than a training run unless they are told to."""


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All that name a class or function of the package."""
    if isinstance(tree, dict):
        if str(tree.get("_target_")).startswith("oar_lightning."):
            yield tree
        for inner in tree.values():
            yield from nodes(inner)


CONFIG = yaml.safe_load((conf_dir() / "config.yaml").read_text(encoding="utf-8"))
FILES = {
    str(path.relative_to(conf_dir())): yaml.safe_load(path.read_text(encoding="utf-8"))
    for part in PARTS
    for path in sorted((conf_dir() / part).rglob("*.yaml"))
    if path.stem not in VARIANTS
} | {stage: CONFIG[stage] for stage in STAGES}


def pairs(tree: Any) -> Iterator[tuple[str, Any, Any]]:
    """Of each plain value: its name, what conf/ says and what the class does."""
    for node in nodes(tree):
        target: Any = locate(node["_target_"])
        for name, parameter in inspect.signature(target).parameters.items():
            value = node.get(name, {})
            if parameter.default is not parameter.empty and not isinstance(value, dict | list) and "${" not in str(value):
                yield f"{node['_target_']}.{name}", value, parameter.default


@pytest.mark.parametrize("file", FILES)
def test_defaults_are_those_of_conf(file: str) -> None:
    for name, value, default in pairs(FILES[file]):
        assert default == value, name


def test_many_values_are_compared() -> None:
    assert sum(len(list(pairs(tree))) for tree in FILES.values()) > 200
