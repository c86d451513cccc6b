"""Labs as parts of a study: `task=lab` with estimators of the study's own, in a process of its own, and what it found."""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from oar_lightning.common.paths import conf_dir
from oar_lightning.lab.page import RESULTS, TOKENS

PLAIN = {"scorer": "uniform", "gate": "bilevel"}
"""What a run has whose experiment names no scorer or gate, as in conf/config.yaml."""

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


def experiment_part(name: str) -> tuple[dict[str, str], dict[str, Any]]:
    """What conf/experiment/<name>.yaml says of credit, with the experiments that it goes on from: the files that it chooses in
    the groups scorer and gate and in groups below them, and the settings of both, by their dotted keys."""
    content: Any = _read("experiment", name)
    choices: dict[str, str] = {}
    settings: dict[str, Any] = {}
    for entry in content.get("defaults", []):
        if isinstance(entry, Mapping):
            chosen = {str(key).removeprefix("override /"): str(value) for key, value in entry.items()}
            choices |= {key: value for key, value in chosen.items() if key.split("/")[0] in PLAIN}
        elif entry != "_self_":
            inherited = experiment_part(entry)
            choices |= inherited[0]
            settings |= inherited[1]
    return choices, settings | dict(_flat({key: content[key] for key in PLAIN if key in content}))


def _read(group: str, name: str) -> Any:
    return yaml.safe_load((conf_dir() / group / f"{name}.yaml").read_text(encoding="utf-8"))


def _flat(node: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def of_experiment(name: str, estimator_name: str, *more: str) -> list[str]:
    """The overrides that add the scorer and the gate with which `+experiment=name` trains.

    A scorer that reads the gate's region gets that of its own gate. `more`: further settings of the estimator, as
    ``scorer.samples=4`` or ``scorer/teacher=policy``.
    """
    choices, settings = experiment_part(name)
    own = f"lab.estimators.{estimator_name}"
    words = [f"+{group}@{own}.{group}={(PLAIN | choices)[group]}" for group in PLAIN]
    below = {key: value for key, value in choices.items() if "/" in key}
    below |= dict(word.split("=", 1) for word in more if "/" in word.split("=")[0])
    words += [f"{group}@{own}.{group.replace('/', '.')}={choice}" for group, choice in below.items()]
    if "region" in _read("scorer", (PLAIN | choices)["scorer"]):
        words.append(f"{own}.scorer.region=${{{own}.gate.region}}")
    words += [f"{own}.{key}={json.dumps(value)}" for key, value in settings.items()]
    return [*words, *(f"{own}.{word}" for word in more if "/" not in word.split("=")[0])]


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
