"""Labs as parts of a study: `task=lab` with estimators of the study's own, in a process of its own, and what it found."""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from oar_lightning.lab.page import RESULTS, TOKENS

NOTHING: Mapping[str, str] = MappingProxyType({})


def estimator(
    name: str,
    scorer: str,
    gate: str | None = None,
    *,
    of_scorer: Mapping[str, str] = NOTHING,
    of_gate: Mapping[str, str] = NOTHING,
) -> list[str]:
    """The overrides that add a scorer and its gate to `lab.estimators`, each a file of its group with other settings."""
    own = f"lab.estimators.{name}"
    return [
        f"+scorer@{own}.scorer={scorer}",
        *([] if gate is None else [f"+gate@{own}.gate={gate}"]),
        *(f"{own}.scorer.{key}={value}" for key, value in of_scorer.items()),
        *(f"{own}.gate.{key}={value}" for key, value in of_gate.items()),
    ]


def without(*names: str) -> list[str]:
    """The overrides that leave estimators of the default list out."""
    return [f"~lab.estimators.{name}" for name in names]


def lab_results(*overrides: str) -> dict[str, Any]:
    """What `results.json` of a lab with these overrides holds, and the completions' ``texts``.

    Raises:
        subprocess.CalledProcessError: where the lab fails; it has said why.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "oar_lightning", "task=lab", *overrides, f"lab.report={folder}/lab"]
        subprocess.run(command, check=True)
        found: dict[str, Any] = json.loads((Path(folder) / "lab" / RESULTS).read_text(encoding="utf-8"))
        with gzip.open(Path(folder) / "lab" / TOKENS, "rt", encoding="utf-8") as rows:
            found["texts"] = ["".join(json.loads(row)["tokens"]) for row in rows]
    return found


def run_asked(doc: str | None, variants: Iterable[str], run: Callable[..., None]) -> None:
    """Read the command line of a study's script: `--lab VARIANT` and further overrides are what `run` gets."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", metavar="VARIANT", choices=list(variants), help="run the lab of this variant")
    options, more = parser.parse_known_args()
    if options.lab:
        run(options.lab, *more)
