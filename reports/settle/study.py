"""The confirmatory study of README.md: its runs, and what they say.

    python reports/settle/study.py run graph endpoint --folder DIR   # tuning, then the endpoint; goes on where it was
    python reports/settle/study.py run graph turning_point --stage time --folder DIR   # runs of which the time alone counts
    python reports/settle/study.py run graph endpoint --folder DIR --repeat   # also what runs.csv has
    python reports/settle/study.py read sqlite:///DIR/mlflow.db      # adds ended runs to runs.csv, writes README.md's tables

Nothing here may change after the first run but to mend a fault, which README.md then tells.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from learning import draw_learning
from records import CURVES, Row, best, read_csv, read_store, write_csv
from rules import (
    ARMS,
    BORROWED,
    ENDPOINT,
    OTHER_UPDATES,
    PENALTY,
    RATES,
    STAGES,
    Setting,
    seeds_of,
    settings_of,
    tuning_seeds,
    updates,
)
from sections import page

from oar_lightning.common.markdown import fill
from oar_lightning.common.outputs import replace_file
from oar_lightning.reporting.export import curves_csv, kept_curves

HERE = Path(__file__).parent

COMMON = ("num_threads=1", "evaluation.every_n_steps=0", "evaluation.heatmap=false")


def command(task: str, stage: str, arm: str, setting: Setting, seeds: Sequence[int]) -> list[str]:
    """The sweep of an arm's setting with these seeds. Started again it goes on where it was."""
    problems = [] if stage == "tune" else ["evaluation.problems=1024"]
    problems.append(f"evaluation.greedy={'true' if stage == 'greedy' else 'false'}")
    gate = [f"{'loss.entropy_coef' if arm == PENALTY else 'gate.beta'}={setting.beta}"] if setting.beta else []
    chosen = [f"optimizer.lr={setting.lr}", f"seed=choice({','.join(map(str, seeds))})"]
    name = "_".join(filter(None, ["settle", task, stage, arm, setting.lr, setting.beta, f"from{seeds[0]}"]))
    sweeper = [f"hydra.sweeper.study_name={name}", "hydra.sweeper.max_failure_rate=1"]  # a run that is given up counts
    steps = [f"trainer.max_steps={updates(task, arm)}"] if arm in OTHER_UPDATES else []
    arguments = [f"+variant={task}", *COMMON, *problems, *ARMS[arm], *steps, *gate, *chosen, *sweeper]
    return [sys.executable, "-m", "oar_lightning", "-m", "+sweeps=families", *arguments]


def run(task: str, arms: Sequence[str], folder: Path, stage: str = "endpoint", repeat: bool = False) -> None:
    """All tuning runs of the arms, then those of the stage at each arm's best setting; none that runs.csv has, unless they are
    to be repeated."""
    had = [] if repeat else read_csv(HERE / "runs.csv")
    for arm in arms:
        for setting in settings_of(task, arm):
            start(had, folder, task, "tune", arm, setting, tuning_seeds(arm))
    for arm in arms:
        start(had, folder, task, stage, arm, chosen(had, folder, task, arm), seeds_of(stage, arms))


def start(had: Sequence[Row], folder: Path, task: str, stage: str, arm: str, setting: Setting, seeds: Sequence[int]) -> None:
    """The runs of these seeds that runs.csv does not have."""
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, [str(HERE.parents[1]), os.environ.get("PYTHONPATH")]))
    ended = {row.seed for row in had if row[:5] == (task, stage, arm, *setting)}
    if missing := [seed for seed in seeds if seed not in ended]:
        made = command(task, stage, arm, setting, missing)
        subprocess.run(made, cwd=folder, env=os.environ | {"PYTHONPATH": path}, check=True)


def chosen(had: Sequence[Row], folder: Path, task: str, arm: str) -> Setting:
    """The setting that the tuning runs choose, of runs.csv and of the folder's store."""
    store = folder / "mlflow.db"
    setting = best([*had, *(read_store(f"sqlite:///{store.resolve()}")[0] if store.exists() else [])], task, arm)
    if setting is None:
        tuned = BORROWED.get(arm, arm)
        repeated = "" if had else " --repeat"
        raise SystemExit(f"{task}, {tuned}: tuning runs are missing; start `study.py run {task} {tuned}{repeated}`")
    return setting


def main() -> None:
    parser = argparse.ArgumentParser(description="The confirmatory study of README.md.")
    actions = parser.add_subparsers(dest="action", required=True)
    starts = actions.add_parser("run", help="run what is missing")
    starts.add_argument("task", choices=list(RATES))
    starts.add_argument("arms", help=f"endpoint ({', '.join(ENDPOINT)}), or names with commas of {', '.join(ARMS)}")
    starts.add_argument("--folder", type=Path, required=True, help="of the store, the studies and the runs")
    starts.add_argument("--stage", choices=STAGES, default="endpoint", help=" | ".join(f"{k}: {v}" for k, v in STAGES.items()))
    starts.add_argument("--repeat", action="store_true", help="run what runs.csv has, too")
    reads = actions.add_parser("read", help="write runs.csv and the tables of README.md")
    reads.add_argument("store", nargs="?", help="MLflow's, e.g. sqlite:///mlflow.db; none: what runs.csv has")
    args = parser.parse_args()
    if args.action == "run":
        arms = ENDPOINT if args.arms == "endpoint" else tuple(args.arms.split(","))
        if unknown := [arm for arm in arms if arm not in ARMS]:
            parser.error(f"no such arm: {', '.join(unknown)}; there are {', '.join(ARMS)}")
        try:
            for arm in arms:
                updates(args.task, arm)
        except ValueError as error:
            parser.error(str(error))
        run(args.task, arms, args.folder, args.stage, args.repeat)
        return
    rows, curves_file = read_csv(HERE / "runs.csv"), HERE / "curves.csv.gz"
    if args.store:
        found, curves = read_store(args.store, CURVES)
        rows = list({row.run_id: row for row in rows + found}.values())
        write_csv(HERE / "runs.csv", rows)
        kept = kept_curves(curves_file)
        both = {metric: {**kept.get(metric, {}), **curves.get(metric, {})} for metric in CURVES}
        replace_file(curves_file, curves_csv(sorted(row.run_id for row in rows), both))
    draw_learning(rows, kept_curves(curves_file), HERE / "learning.png")
    fill(HERE / "README.md", page(rows))


if __name__ == "__main__":
    main()
