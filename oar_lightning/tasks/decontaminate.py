"""task=decontaminate: which training problems are in an evaluation set, as a table and, if asked for, a JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.outputs import new_file, write_text
from oar_lightning.common.progress import counted_progress
from oar_lightning.common.tables import ConsoleTable
from oar_lightning.data.decontamination import EXACT, OVERLAP, ContaminationReport, find_contamination
from oar_lightning.data.filters import whole_eval_sets
from oar_lightning.data.stream import ProblemSource, is_endless
from oar_lightning.types import MathProblem
from oar_lightning.wiring.data import build_eval_sets, build_train


def prepare(cfg: DictConfig) -> Callable[[], float | None]:
    """Build the training problems and the evaluation sets.

    Raises:
        ConfigError: where one of them is missing, the training problems have no end, or the output is a folder.
    """
    train = build_train(cfg)
    if is_endless(train):
        raise ConfigError(
            f"task=decontaminate reads all training problems once, and those of data={cfg.data.name} have no end; "
            "choose a finite set, e.g. data=math"
        )
    sources = build_eval_sets(cfg)
    if not sources:
        raise ConfigError("data.evaluation names no evaluation set to compare with; e.g. data/evaluation=[math500,aime24]")
    eval_sets = whole_eval_sets(sources, cfg.evaluation.problems)
    output = new_file(cfg.decontaminate.output, "decontaminate.output")
    return lambda: compare(train, eval_sets, output)


def compare(train: ProblemSource, eval_sets: dict[str, list[MathProblem]], output: Path | None) -> float:
    """Compare, print the table, write the file; returns how many training problems are in an evaluation set."""
    with counted_progress("comparing", "training problems", None) as advance:
        found = find_contamination(counted(train, advance), eval_sets)
    console = Console(markup=False)
    table(found).print(console)
    console.print(
        f"{found.contaminated} of {found.train_problems} training problems are in an evaluation set; "
        "data.decontaminate=true leaves them out of training",
        soft_wrap=True,
    )
    if output is not None:
        write_text(output, json.dumps(as_json(found), indent=1, ensure_ascii=False) + "\n")
        console.print(f"written: {output}", soft_wrap=True)
    return float(found.contaminated)


def counted(train: ProblemSource, advance: Callable[[int], None]) -> Iterator[MathProblem]:
    for problem in train:
        yield problem
        advance(1)


def table(found: ContaminationReport) -> ConsoleTable:
    header = ("evaluation set", "its problems", f"same text ({EXACT})", f"share a {OVERLAP}")
    rows = [
        [name, str(size), str(found.count(name, EXACT)), str(found.count(name, OVERLAP))]
        for name, size in found.eval_sets.items()
    ]
    return ConsoleTable("Training problems that are in an evaluation set", header, rows)


def as_json(found: ContaminationReport) -> dict[str, object]:
    """Counts per evaluation set, and each (training problem, set, its problem, kind); the JSON calls a set "benchmark"."""
    return {
        "train_problems": found.train_problems,
        "contaminated": found.contaminated,
        "benchmarks": {
            name: {"problems": size, EXACT: found.count(name, EXACT), OVERLAP: found.count(name, OVERLAP)}
            for name, size in found.eval_sets.items()
        },
        "findings": [{"train": f.train, "benchmark": f.eval_set, "problem": f.problem, "kind": f.kind} for f in found.findings],
    }
