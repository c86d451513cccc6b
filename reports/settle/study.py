"""The confirmatory study of README.md: its runs, and what they say.

    python reports/settle/study.py run graph endpoint --folder DIR   # tuning, then the endpoint; goes on where it was
    python reports/settle/study.py read sqlite:///DIR/mlflow.db      # adds ended runs to runs.csv, writes README.md's tables

Nothing here may change after the first run but to mend a fault, which README.md then tells.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mlflow import MlflowClient

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.reporting import ReportConfig, read_runs
from oar_lightning.reporting.runs import RunRecord
from oar_lightning.reporting.statistics import mean_interval

HERE = Path(__file__).parent

RATES = {"graph": ("5e-5", "7.5e-5", "1e-4", "1.5e-4", "2e-4"), "asides": ("5e-5", "1e-4", "2e-4", "3e-4", "4.5e-4")}
"""Task -> learning rates, the same for every arm."""

SETS = {"graph": "graph", "asides": "chain"}
"""Task -> the name of its evaluation set."""

BASELINE = "grpo"
NO_GATE = ""
BETAS = ("2.0", "1.0")
"""Strengths of OAR's gate: the paper's, and a weaker one."""

ARMS: dict[str, tuple[str, ...]] = {
    BASELINE: ("+experiment=grpo",),
    "oar_g": ("+experiment=oar_g",),
    "grpo_more": ("+experiment=grpo", "update.group_size=10"),
    "oar_p": ("+experiment=oar_p",),
    "total_effect_fast": ("+experiment=total_effect_fast",),
    "vineppo": ("+experiment=vineppo", "scorer/segments=task_steps", "scorer.samples=2"),
    "information_gain": ("+experiment=information_gain",),
    "eighty_twenty": ("+experiment=eighty_twenty",),
    "random": ("+experiment=oar_g", "scorer=random"),
    "shuffled": ("+experiment=oar_g", "scorer=shuffled"),
    "position": ("+experiment=oar_g", "scorer=position"),
    "oracle": ("+experiment=oracle",),
    "oracle_in_oars_gate": ("+experiment=oar_g", "scorer=oracle"),
}
WITHOUT_OARS_GATE = (BASELINE, "grpo_more", "vineppo", "information_gain", "eighty_twenty", "oracle")
"""Arms with no gate, or one of their own: they have twice the tuning seeds, so that every arm has 20 tuning runs."""

ENDPOINT = (BASELINE, "oar_g")
TUNING_SEEDS = (50, 51, 52, 53)
ENDPOINT_SEEDS = tuple(range(100, 124))
OTHER_SEEDS = ENDPOINT_SEEDS[:12]
MARGIN = 2.0
"""Points. A lead whose interval ends below it is too small to matter here."""

COMMON = ("num_threads=1", "evaluation.every_n_steps=0", "evaluation.greedy=false", "evaluation.heatmap=false")


class Row(NamedTuple):
    """An ended run. `accuracy`: sampled, at the end, 0 to 1; `state`: complete, or failed (given up)."""

    task: str
    stage: str
    arm: str
    lr: str
    beta: str
    seed: int
    accuracy: float
    state: str
    cpu_s: float
    revision: str
    run_id: str


class Setting(NamedTuple):
    lr: str
    beta: str


def settings_of(task: str, arm: str) -> list[Setting]:
    betas = (NO_GATE,) if arm in WITHOUT_OARS_GATE else BETAS
    return [Setting(lr, beta) for lr in RATES[task] for beta in betas]


def tuning_seeds(arm: str) -> tuple[int, ...]:
    return TUNING_SEEDS if arm in WITHOUT_OARS_GATE else TUNING_SEEDS[:2]


def command(task: str, stage: str, arm: str, setting: Setting, seeds: Sequence[int]) -> list[str]:
    """The sweep of an arm's setting with these seeds. Started again it goes on where it was."""
    problems = ["evaluation.problems=1024"] if stage == "endpoint" else []
    gate = [f"gate.beta={setting.beta}"] if setting.beta else []
    chosen = [f"optimizer.lr={setting.lr}", f"seed=choice({','.join(map(str, seeds))})"]
    name = "_".join(filter(None, ["settle", task, stage, arm, setting.lr, setting.beta, f"from{seeds[0]}"]))
    arguments = [f"+variant={task}", *COMMON, *problems, *ARMS[arm], *gate, *chosen, f"hydra.sweeper.study_name={name}"]
    return [sys.executable, "-m", "oar_lightning", "-m", "+sweeps=families", *arguments]


def best(rows: Iterable[Row], task: str, arm: str) -> Setting | None:
    """The setting with the highest mean accuracy of the tuning runs, the lower rate where two are equal; None as long as one
    is missing."""
    found: dict[Setting, dict[int, float]] = {}
    for row in rows:
        if (row.task, row.stage, row.arm) == (task, "tune", arm):
            found.setdefault(Setting(row.lr, row.beta), {})[row.seed] = row.accuracy
    settings, seeds = settings_of(task, arm), tuning_seeds(arm)
    if any(found.get(setting, {}).keys() < set(seeds) for setting in settings):
        return None
    return max(settings, key=lambda setting: (sum(found[setting][seed] for seed in seeds), -float(setting.lr)))


def verdict(low: float, high: float) -> str:
    """Of an interval of the difference in points, by the rule of README.md."""
    if low > 0:
        return "yes"
    return "no" if high < MARGIN else "not settled"


def row_of(run: RunRecord, sweep: str) -> Row:
    """The run of a sweep that `command` has started: settle_<task>_<stage>_<arm>_<rate>[_<beta>]_from<first seed>."""
    task, stage, rest = sweep.removeprefix("settle_").rpartition("_")[0].split("_", 2)
    arm = next(name for name in sorted(ARMS, key=len, reverse=True) if rest.startswith(f"{name}_"))
    lr, _, beta = rest.removeprefix(f"{arm}_").partition("_")
    return Row(
        task=task,
        stage=stage,
        arm=arm,
        lr=lr,
        beta=beta,
        seed=int(run.seed),
        accuracy=run.metrics[f"eval/{SETS[task]}/avg_at_4"],
        state=run.state,
        cpu_s=run.metrics.get("time/total_cpu_s", float("nan")),
        revision=run.tags["git_revision"],
        run_id=run.run_id,
    )


def read_store(uri: str) -> list[Row]:
    _, runs = read_runs(MlflowClient(uri), "oar_lightning", ReportConfig(filter="tags.sweep LIKE 'settle_%'", name="settle"))
    return [row_of(run, run.tags["sweep"]) for run in runs if run.state in ("complete", "failed")]


def read_csv(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        rows = [dict(row) for row in csv.DictReader(file)]
    numbers = {"seed": int, "accuracy": float, "cpu_s": float}
    return [Row(**{key: numbers.get(key, str)(value) for key, value in row.items()}) for row in rows]


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(sorted(set(rows)))


def run(task: str, arms: Sequence[str], folder: Path) -> None:
    """All tuning runs of the arms, then those of the endpoint at each arm's best setting; none that runs.csv has."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parents[1]), os.environ.get("PYTHONPATH")]))
    }

    had = read_csv(HERE / "runs.csv")

    def start(stage: str, arm: str, setting: Setting, seeds: Sequence[int]) -> None:
        ended = {row.seed for row in had if row[:5] == (task, stage, arm, *setting)}
        if missing := [seed for seed in seeds if seed not in ended]:
            subprocess.run(command(task, stage, arm, setting, missing), cwd=folder, env=environment, check=True)

    for arm in arms:
        for setting in settings_of(task, arm):
            start("tune", arm, setting, tuning_seeds(arm))
    store = folder / "mlflow.db"
    rows = had + (read_store(f"sqlite:///{store.resolve()}") if store.exists() else [])
    for arm in arms:
        chosen = best(rows, task, arm)
        if chosen is None:
            raise SystemExit(f"{task}, {arm}: tuning runs are missing; start this command again")
        start("endpoint", arm, chosen, ENDPOINT_SEEDS if set(arms) <= set(ENDPOINT) else OTHER_SEEDS)


def tuning_table(rows: Sequence[Row], task: str) -> str:
    lines = [["arm", "gate's beta", *RATES[task]]]
    for arm in ARMS:
        chosen = best(rows, task, arm)
        for beta in dict.fromkeys(setting.beta for setting in settings_of(task, arm)):
            cells = []
            for lr in RATES[task]:
                values = [r.accuracy for r in rows if r[:5] == (task, "tune", arm, lr, beta)]
                text = f"{100 * sum(values) / len(values):.1f}" if values else "-"
                if 0 < len(values) < len(tuning_seeds(arm)):
                    text += f" (n = {len(values)})"
                cells.append(f"**{text}**" if chosen == Setting(lr, beta) else text)
            if any(cell != "-" for cell in cells):
                lines.append([arm, beta or "-", *cells])
    return markdown(lines) if len(lines) > 1 else "No runs yet."


def endpoint_table(rows: Sequence[Row], task: str) -> str:
    results: dict[str, dict[int, Row]] = {}
    for row in rows:
        if (row.task, row.stage) == (task, "endpoint"):
            results.setdefault(row.arm, {})[row.seed] = row
    base = results.get(BASELINE, {})
    lines = [["arm", "rate", "beta", "n", "accuracy %", "minus GRPO, points [95 %]", "given up", "CPU s a run", "verdict"]]
    for arm in ARMS:
        found = results.get(arm, {})
        if not found:
            continue
        own = list(found.values())
        accuracy = 100 * sum(row.accuracy for row in own) / len(own)
        cells = [arm, own[0].lr, own[0].beta or "-", str(len(own)), f"{accuracy:.1f}", *paired(arm, found, base)]
        given_up, cpu = sum(row.state != "complete" for row in own), sum(row.cpu_s for row in own) / len(own)
        lines.append([*cells[:6], str(given_up), f"{cpu:.0f}", cells[6]])
    return markdown(lines) if len(lines) > 1 else "No runs yet."


def paired(arm: str, found: Mapping[int, Row], base: Mapping[int, Row]) -> tuple[str, str]:
    """The difference from GRPO over pairs with the same seed, and the verdict once all pairs of the endpoint are there."""
    seeds = sorted(found.keys() & base.keys())
    if arm == BASELINE or len(seeds) < 2:
        return "-", "-"
    interval = mean_interval([100 * (found[seed].accuracy - base[seed].accuracy) for seed in seeds], bootstrap_from=math.inf)
    whole = arm in ENDPOINT and len(seeds) == len(ENDPOINT_SEEDS)
    return f"{interval:+.1f}", verdict(interval.low, interval.high) if whole else "-"


def page(rows: Sequence[Row]) -> str:
    parts = []
    for task in RATES:
        parts.append(f"### `{task}`: tuning\nMean accuracy in % at each rate. Bold: chosen.\n\n{tuning_table(rows, task)}")
        parts.append(f"### `{task}`: endpoint\n{endpoint_table(rows, task)}")
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="The confirmatory study of README.md.")
    actions = parser.add_subparsers(dest="action", required=True)
    starts = actions.add_parser("run", help="run what is missing")
    starts.add_argument("task", choices=list(RATES))
    starts.add_argument("arms", help=f"endpoint ({', '.join(ENDPOINT)}), or names with commas of {', '.join(ARMS)}")
    starts.add_argument("--folder", type=Path, required=True, help="of the store, the studies and the runs")
    reads = actions.add_parser("read", help="write runs.csv and the tables of README.md")
    reads.add_argument("store", nargs="?", help="MLflow's, e.g. sqlite:///mlflow.db; none: what runs.csv has")
    args = parser.parse_args()
    if args.action == "run":
        arms = ENDPOINT if args.arms == "endpoint" else tuple(args.arms.split(","))
        if unknown := [arm for arm in arms if arm not in ARMS]:
            parser.error(f"no such arm: {', '.join(unknown)}; there are {', '.join(ARMS)}")
        run(args.task, arms, args.folder)
        return
    rows = read_csv(HERE / "runs.csv") + (read_store(args.store) if args.store else [])
    rows = list({row.run_id: row for row in rows}.values())
    write_csv(HERE / "runs.csv", rows)
    fill(HERE / "README.md", page(rows))


if __name__ == "__main__":
    main()
