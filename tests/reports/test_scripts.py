"""The scripts of the studies use what the package offers, not what it keeps to itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "reports").glob("*/*.py"))


def private_names(source: str) -> list[str]:
    """Names of the package with a leading underscore: imported ones, and attributes of what is imported."""
    nodes = list(ast.walk(ast.parse(source)))
    imports = [n for n in nodes if isinstance(n, ast.ImportFrom) and str(n.module).split(".")[0] == "oar_lightning"]
    bound = {alias.asname or alias.name for node in imports for alias in node.names}
    names = [part for node in imports for part in [*str(node.module).split("."), *(alias.name for alias in node.names)]]
    read = [n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id in bound]
    return [name for name in [*names, *(n.attr for n in read)] if name.startswith("_") and name != "__main__"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_script_reads_no_private_name(path: Path) -> None:
    assert private_names(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from oar_lightning.benchmark.measure import _status", ["_status"]),
        ("from oar_lightning._inner import thing", ["_inner"]),
        ("def f():\n    from oar_lightning.wiring import run as r\n    r._cluster()", ["_cluster"]),
        ("from oar_lightning import __main__ as command\ncommand.prepare(1)", []),
        ("from trl import GRPOTrainer\nGRPOTrainer._generate", []),
    ],
)
def test_what_counts_as_private(source: str, found: list[str]) -> None:
    assert private_names(source) == found
