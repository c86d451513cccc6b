"""All methods of credit in the credit lab, on four tasks: the tables of README.md.

python reports/lab_methods/labs.py --past chain   # the short runs of SPRO, PRIME and iStar on a task (some minutes)
python reports/lab_methods/labs.py --lab chain    # the labs of a task -> chain.json (some minutes)
python reports/lab_methods/labs.py                # the tables alone, from the files beside it
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lab_tables import COLUMNS, COSINE, HERE, page, read, written
from methods import BASELINE, COMPARED, DAPO, DEFAULTS, FAMILIES, FURTHER, HINTED, PAST, READS_HINTS, TASKS, TOLD_A_SOLUTION

from oar_lightning.common.markdown import fill
from oar_lightning.lab.comparison import differences
from oar_lightning.lab.study import lab_results, of_experiment, without
from oar_lightning.lab.types import Measure

UPDATES = 40
RUN = [
    f"trainer.max_steps={UPDATES}",
    "update.problems=8",
    "update.microbatches=1",
    "optimizer.lr=2e-4",
    "schedule.warmup_steps=10",
    "evaluation.every_n_steps=0",
    "evaluation.problems=32",
    "evaluation.samples=4",
    "evaluation.heatmap=false",
    "num_threads=1",
    "logger=none",
]
"""Settings of a short run beside its experiment and task."""

SETTINGS = [
    f"lab.baseline={BASELINE}",
    "lab.faithfulness=null",
    "lab.stability=null",
    "logger=none",
    "num_threads=1",
    *without(*DEFAULTS),
]


def name_in_lab(experiment: str) -> str:
    """The lab's own list has estimators of the same names."""
    return f"experiment_{experiment}"


def added(task: str, experiments: Iterable[str]) -> list[str]:
    """The overrides that add the estimators of experiments."""
    words = []
    for experiment in experiments:
        more = ["scorer/teacher=policy"] if experiment in READS_HINTS else []
        more += TOLD_A_SOLUTION.get(experiment, []) if task == HINTED else []
        words += of_experiment(experiment, name_in_lab(experiment), *more)
    return words


def run_folder(task: str, experiment: str) -> str:
    return f"outputs/lab_methods/{task}/{experiment}"


def of_run(task: str, experiment: str) -> list[str]:
    """The overrides that give an estimator its past, and that judge the policy of its run."""
    folder = run_folder(task, experiment)
    return [f"lab.past={folder}", "policy=hf", f"policy.name={folder}/policy"]


def labs(task: str) -> dict[str, list[str]]:
    """Name -> the overrides of a lab of this task. `all` judges the task's policy by all methods that can."""
    apart = {"spro", "rlcsd"}
    families = FAMILIES if task != HINTED else {name: FAMILIES[name] for name in ("hindsight", "control")}
    methods = [name for family in families.values() for name in family if name not in apart]
    controls = [word for words in FURTHER.values() for word in words]
    base = [*TASKS[task], *SETTINGS]
    few = [*base, *without("late", "early", "improbability")]
    rlcsd = [*few, *added(task, ["rlcsd", *COMPARED]), DAPO]
    if task == HINTED:
        return {"all": [*base, *added(task, methods), *controls], "rlcsd": rlcsd}
    pasts = ",".join(run_folder(task, name) for name in ("prime", "istar"))
    return {
        "all": [*base, *added(task, methods), *controls, f"lab.past=[{pasts}]"],
        "rlcsd": rlcsd,
        "spro": [*few, *added(task, ["spro", *COMPARED]), *of_run(task, "spro")],
        "istar": [*few, *added(task, ["istar", *COMPARED]), *of_run(task, "istar")],
    }


def train_past(task: str, *more: str) -> None:
    """The short runs of the methods with a past."""
    for experiment in PAST:
        command = [sys.executable, "-m", "oar_lightning", f"+experiment={experiment}", *TASKS[task], *RUN]
        subprocess.run([*command, f"hydra.run.dir={run_folder(task, experiment)}", *more], check=True)


def run_labs(task: str, only: Sequence[str], *more: str) -> None:
    """The labs of a task, and what the tables need of each into a file, which keeps those of earlier times."""
    for name, words in labs(task).items():
        if name in only:
            found = (read(task) if written(task) else {}) | {name: kept(lab_results(*words, *more))}
            (HERE / f"{task}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


UNKNOWN: dict[str, float | None] = {"mean": None, "low": None, "high": None}


def kept(results: Mapping[str, Any]) -> dict[str, Any]:
    """What the tables need of a lab's results.json: of each estimator the means of `COLUMNS` and the cosine, with intervals,
    p-values of differences to `BASELINE`, adjusted over these columns, and costs."""
    problem = [c["problem"] for c in results["completions"]]
    measures = [
        Measure(key, key, "high", {n: nan_for_none(v) for n, v in results["measures"][key]["values"].items()})
        for key in COLUMNS
    ]
    adjusted = {(d.measure, d.estimator): d.p_holm for d in differences(measures, BASELINE, problem)}
    rows = {}
    for name, cost in results["estimators"].items():
        cells = {}
        for key in COLUMNS:
            p_holm = adjusted.get((key, name), math.nan)
            cells[key] = results["measures"][key]["means"][name] | {"p_holm": None if math.isnan(p_holm) else p_holm}
        cells[COSINE] = results["gradients"].get(name, {}).get(COSINE, UNKNOWN)  # of too few right completions there is none
        rows[name.removeprefix(name_in_lab(""))] = {key: rounded(cell) for key, cell in cells.items()} | {
            "seconds": cost["seconds"],
            "forward_equivalents": cost["forward_equivalents"],
        }
    truths = {name: results["truths"][name] for name in ("first_error", "monte_carlo")}
    completions = {"completions": len(problem), "problems": len(set(problem)), "tokens": results["tokens"]}
    right = sum(bool(c["correct"]) for c in results["completions"])
    return completions | {"right": right, "truths": truths, "estimators": rows}


def nan_for_none(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else value for value in values)


def rounded(cell: Mapping[str, float | None]) -> dict[str, float | None]:
    return {key: value if value is None else round(value, 6) for key, value in cell.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--past", metavar="TASK", choices=TASKS, help="make the short runs on this task")
    parser.add_argument("--lab", metavar="TASK", choices=TASKS, help="run the labs of this task")
    parser.add_argument("--only", metavar="LAB", choices=labs("chain"), help="of these labs this one")
    options, more = parser.parse_known_args()
    if options.past:
        train_past(options.past, *more)
    if options.lab:
        run_labs(options.lab, [options.only] if options.only else [*labs(options.lab)], *more)
    if not options.past:
        fill(HERE / "README.md", page())


if __name__ == "__main__":
    main()
