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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mlflow import MlflowClient

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.reporting import ReportConfig, read_runs
from oar_lightning.reporting.bands import ENDS, ends_of
from oar_lightning.reporting.export import curves_csv, kept_curves
from oar_lightning.reporting.runs import Curves, RunRecord, read_curves
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
    "oar_g_in_sharp_gate": ("+experiment=oar_g", "gate.threshold=absolute", "gate.tau=0.5"),
    "grpo_more": ("+experiment=grpo", "update.group_size=10"),
    "oar_p": ("+experiment=oar_p",),
    "total_effect": ("+experiment=total_effect",),
    "total_effect_fast": ("+experiment=total_effect_fast",),
    "vineppo": ("+experiment=vineppo", "scorer/segments=task_steps", "scorer.samples=2"),
    "information_gain": ("+experiment=information_gain",),
    "eighty_twenty": ("+experiment=eighty_twenty",),
    "random": ("+experiment=oar_g", "scorer=random"),
    "shuffled": ("+experiment=oar_g", "scorer=shuffled"),
    "position": ("+experiment=oar_g", "scorer=position"),
    "anchor_states": ("+experiment=anchor_states",),
    "turning_point": ("+experiment=turning_point",),
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
    """An ended run. `accuracy`: sampled, at the end, 0 to 1; `state`: complete, or failed (given up). What follows `run_id` is
    a mean over the last tenth of training, NaN where it was not recorded."""

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
    grad_norm: float = math.nan
    ess_ratio: float = math.nan
    mean_length: float = math.nan
    forward_equivalents: float = math.nan


CURVES = ("reward", "entropy", *ENDS.values())
"""Metrics whose curves are kept."""


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


def row_of(run: RunRecord, sweep: str, curves: Curves) -> Row:
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
        **ends_of(run, curves),
    )


def read_store(uri: str, metrics: Sequence[str] = ()) -> tuple[list[Row], Curves]:
    """The ended runs, and the curves of these metrics."""
    client = MlflowClient(uri)
    _, runs = read_runs(client, "oar_lightning", ReportConfig(filter="tags.sweep LIKE 'settle_%'", name="settle"))
    runs = [run for run in runs if run.state in ("complete", "failed")]
    curves = read_curves(client, runs, metrics)
    return [row_of(run, run.tags["sweep"], curves) for run in runs], curves


def read_csv(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        rows = [dict(row) for row in csv.DictReader(file)]
    numbers: dict[str, Callable[[str], Any]] = {"seed": int} | dict.fromkeys(("accuracy", "cpu_s", *ENDS), number)
    return [Row(**{key: numbers.get(key, str)(value) for key, value in row.items()}) for row in rows]


def number(text: str) -> float:
    """NaN where nothing was recorded."""
    return float(text) if text else math.nan


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows([text_of(value) for value in row] for row in sorted(rows, key=lambda row: row[:11]))


def text_of(value: Any) -> Any:
    return "" if isinstance(value, float) and math.isnan(value) else value


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
    rows = had + (read_store(f"sqlite:///{store.resolve()}")[0] if store.exists() else [])
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


EQUAL_TIME = "grpo_more"
ENDS_SHOWN = {
    "gradient's norm": ("grad_norm", ".2f"),
    "ESS-ratio": ("ess_ratio", ".2f"),
    "tokens a completion": ("mean_length", ".0f"),
    "passes of scoring": ("forward_equivalents", ".2f"),
}
"""Heading -> column and digits, of what a run was at its end."""
HEADER = [
    *("arm", "rate", "beta", "n", "accuracy %", "minus GRPO, points [95 %]", "minus GRPO with more completions"),
    *("given up", "CPU s a run", *ENDS_SHOWN, "verdict"),
]


def endpoint_table(rows: Sequence[Row], task: str) -> str:
    results: dict[str, dict[int, Row]] = {}
    for row in rows:
        if (row.task, row.stage) == (task, "endpoint"):
            results.setdefault(row.arm, {})[row.seed] = row
    base, more = results.get(BASELINE, {}), results.get(EQUAL_TIME, {})
    lines = [HEADER]
    for arm in ARMS:
        found = results.get(arm, {})
        if not found:
            continue
        own = list(found.values())
        accuracy = 100 * mean(row.accuracy for row in own)
        difference, word = paired(arm, found, base)
        against_more = "-" if arm == EQUAL_TIME else paired(arm, found, more)[0]
        given_up = sum(row.state != "complete" for row in own)
        ends = [shown(mean(getattr(row, column) for row in own), digits) for column, digits in ENDS_SHOWN.values()]
        cells = [arm, own[0].lr, own[0].beta or "-", str(len(own)), f"{accuracy:.1f}", difference, against_more]
        lines.append([*cells, str(given_up), f"{mean(row.cpu_s for row in own):.0f}", *ends, word])
    return markdown(lines) if len(lines) > 1 else "No runs yet."


def mean(values: Iterable[float]) -> float:
    """Of those that were recorded; NaN where none was."""
    recorded = [value for value in values if not math.isnan(value)]
    return sum(recorded) / len(recorded) if recorded else math.nan


def shown(value: float, digits: str) -> str:
    return "-" if math.isnan(value) else f"{value:{digits}}"


def paired(arm: str, found: Mapping[int, Row], base: Mapping[int, Row]) -> tuple[str, str]:
    """The difference from `base`, of GRPO, over pairs with the same seed, and the verdict once all pairs of the endpoint are
    there."""
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
    return "\n\n".join([*parts, f"### Checklist\n{checklist(rows)}"])


def checklist(rows: Sequence[Row]) -> str:
    """The items of the survey arXiv 2604.09459, appendix C."""
    lengths = [row.mean_length for row in rows if not math.isnan(row.mean_length)]
    return markdown(
        [
            ["item", "here"],
            ["base model and size", "built-in policies: 0.34 M parameters (`asides`), 0.9 M (`graph`)"],
            ["training data, size, filters", "generated without end by seed; no filters"],
            ["granularity", "token; completion (GRPO); step (`vineppo`, `information_gain`)"],
            ["family of the method", "docs/methods.md has that of each"],
            ["baseline without credit, same base model", f"`{BASELINE}`, `{EQUAL_TIME}`"],
            ["compute", f"equal numbers of updates; `{EQUAL_TIME}` has about the processor time of OAR-G"],
            ["benchmarks and splits", "1,024 new problems: on `graph` of held-out structures, on `asides` of trained sums"],
            ["metric", "sampled accuracy at temperature 1 after the last update, 4 samples a problem"],
            ["processor time in all", f"{sum(row.cpu_s for row in rows) / 3600:.1f} hours, {len(rows)} runs"],
            ["mean length of completions, tokens", f"{min(lengths):.0f} to {max(lengths):.0f}" if lengths else "no runs yet"],
            ["ablation of the credit", "`random`, `shuffled`, `position`; told the truth: `oracle`, `oracle_in_oars_gate`"],
            ["spread", "Student's t 95 % intervals over pairs by seed"],
            ["cost of credit, forward passes of the batch", "column `passes of scoring`"],
            ["shortest and longest of a batch, tokens", "not kept"],
        ]
    )


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
    rows = read_csv(HERE / "runs.csv")
    if args.store:
        found, curves = read_store(args.store, CURVES)
        rows = list({row.run_id: row for row in rows + found}.values())
        write_csv(HERE / "runs.csv", rows)
        kept = kept_curves(HERE / "curves.csv.gz")
        both = {metric: {**kept.get(metric, {}), **curves.get(metric, {})} for metric in CURVES}
        (HERE / "curves.csv.gz").write_bytes(curves_csv(sorted(row.run_id for row in rows), both))
    fill(HERE / "README.md", page(rows))


if __name__ == "__main__":
    main()
