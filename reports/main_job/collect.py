"""Tables and figure of the main job's runs.

    python reports/main_job/collect.py sqlite:///mlflow.db    # runs.csv, curves.csv, the figure and the tables
    python reports/main_job/collect.py                        # the tables again, from runs.csv

Of each (experiment, seed) the newest finished run counts.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from mlflow import MlflowClient
from mlflow.entities import Run

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.wilson import Z, wilson_bounds
from oar_lightning.reporting.statistics import mean_interval
from oar_lightning.tracking.history import metric_history

HERE = Path(__file__).parent
METHODS = ("grpo", "oar_g", "oar_p")
COLORS = {"grpo": "#5b6570", "oar_g": "#d9822b", "oar_p": "#4a67c8"}
ACCURACY = "eval/chain/avg_at_4"
PROBLEMS = 256
"""Of an evaluation; greedy decoding has one completion of each."""

Curve = list[tuple[int, float]]
"""Steps and accuracies."""


def newest_runs(client: MlflowClient) -> dict[tuple[str, int], Run]:
    experiment = client.get_experiment_by_name("oar_lightning")
    if experiment is None:
        sys.exit("no experiment oar_lightning in this store; run the commands in README.md first")
    runs: dict[tuple[str, int], Run] = {}
    for run in client.search_runs([experiment.experiment_id], "status = 'FINISHED'", max_results=1000):  # newest first
        key = (run.data.tags.get("experiment", ""), int(run.data.tags.get("seed", -1)))
        if key[0] in METHODS:
            runs.setdefault(key, run)
    return dict(sorted(runs.items(), key=lambda item: (METHODS.index(item[0][0]), item[0][1])))


def history(client: MlflowClient, run: Run, metric: str) -> Curve:
    return sorted((m.step, m.value) for m in metric_history(client, run.info.run_id, metric, run.data.tags))


def row(client: MlflowClient, method: str, seed: int, run: Run) -> dict[str, object]:
    accuracy, low, high = (history(client, run, ACCURACY + end) for end in ("", "_low", "_high"))
    greedy = history(client, run, "eval/chain/greedy")
    steps = [value for _, value in history(client, run, "time/step_s")]
    return {
        "method": method,
        "seed": seed,
        "before": accuracy[0][1],
        "before_low": low[0][1],
        "before_high": high[0][1],
        "after": accuracy[-1][1],
        "after_low": low[-1][1],
        "after_high": high[-1][1],
        "greedy_before": greedy[0][1],
        "greedy_after": greedy[-1][1],
        "steps": len(steps),
        "step_median_s": statistics.median(steps),
        "score_median_s": statistics.median(v for _, v in history(client, run, "time/score_s")),
        "wall_s": (run.info.end_time - run.info.start_time) / 1000,
        "revision": run.data.tags.get("git_revision", "")[:12],
    }


def percent(share: float, low: float, high: float) -> str:
    return f"{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def sampled(row: dict[str, Any], when: str) -> str:
    """A sampled accuracy with Wilson's interval.

    A problem's samples are alike. n is how many independent ones would scatter as the interval over problems that the run
    kept says: the normal one of n has its width.
    """
    share, low, high = (float(row[when + end]) for end in ("", "_low", "_high"))
    n = share * (1 - share) * (2 * Z / (high - low)) ** 2 if high > low else PROBLEMS
    return percent(share, *wilson_bounds(share, n))


def greedy(row: dict[str, Any], when: str) -> str:
    share = float(row[f"greedy_{when}"])
    return percent(share, *wilson_bounds(share, PROBLEMS))


def tables(rows: Sequence[dict[str, Any]]) -> str:
    step = {(r["method"], int(r["seed"])): float(r["step_median_s"]) for r in rows}
    after = {(r["method"], int(r["seed"])): 100 * float(r["after"]) for r in rows}
    accuracies = ["before, %", "after, %", "gain, points", "greedy before, %", "greedy after, %"]
    runs = [["method", "seed", *accuracies, "wall s", "median step s (scoring)", "step / grpo"]]
    for r in rows:
        method, seed = r["method"], int(r["seed"])
        ratio = f"{step[method, seed] / step['grpo', seed]:.2f}" if ("grpo", seed) in step else "-"
        gain = after[method, seed] - 100 * float(r["before"])
        accuracies = [sampled(r, "before"), sampled(r, "after"), f"{gain:+.1f}", greedy(r, "before"), greedy(r, "after")]
        seconds = [f"{float(r['wall_s']):.0f}", f"{step[method, seed]:.2f} ({float(r['score_median_s']):.2f})", ratio]
        runs.append([method, str(seed), *accuracies, *seconds])
    methods = [["method", "n", "after, %", "minus grpo, points", "by seed"]]
    for method in METHODS:
        own = {seed: value for (name, seed), value in after.items() if name == method}
        if not own:
            continue
        pairs = [value - after["grpo", seed] for seed, value in own.items() if ("grpo", seed) in after]
        paired = ["-", "-"]
        if method != "grpo" and pairs:
            paired = [f"{mean_interval(pairs):+.1f}", ", ".join(f"{d:+.1f}" for d in pairs)]
        methods.append([method, str(len(own)), f"{mean_interval(list(own.values())):.1f}", *paired])
    return f"{markdown(methods)}\n\n{markdown(runs)}"


def plot(curves: dict[tuple[str, int], Curve]) -> None:
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for method in METHODS:
        own = [curve for (m, _), curve in curves.items() if m == method]
        if not own:
            continue
        for curve in own:
            axis.plot(*zip(*curve, strict=True), color=COLORS[method], alpha=0.3, linewidth=1)
        steps = sorted(set.intersection(*(set(dict(c)) for c in own)))
        means = [statistics.mean(dict(c)[s] for c in own) for s in steps]
        axis.plot(steps, means, color=COLORS[method], linewidth=2.2, marker="o", label=f"{method} (mean of {len(own)} seeds)")
    axis.set(xlabel="optimizer step", ylabel="held-out accuracy, sampled at temperature 1", ylim=(0, 1))
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.savefig(HERE / "training_curve.png", dpi=130)


def write(name: str, rows: Sequence[dict[str, Any]]) -> None:
    with open(HERE / name, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def read_rows() -> list[dict[str, Any]]:
    with open(HERE / "runs.csv", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def collect(uri: str) -> None:
    client = MlflowClient(uri)
    runs = newest_runs(client)
    curves = {key: history(client, run, ACCURACY) for key, run in runs.items()}
    write("runs.csv", [row(client, *key, run) for key, run in runs.items()])
    points = [(*key, step, value) for key, curve in curves.items() for step, value in curve]
    write("curves.csv", [dict(zip(("method", "seed", "step", "accuracy"), point, strict=True)) for point in points])
    plot(curves)


def main(*stores: str) -> None:
    if stores:
        collect(*stores)
    fill(HERE / "README.md", tables(read_rows()))


if __name__ == "__main__":
    main(*sys.argv[1:])
