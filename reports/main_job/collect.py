"""Table and figure of the main job's runs, from MLflow alone.

    python reports/main_job/collect.py sqlite:///mlflow.db

writes runs.csv, table.md and training_curve.png beside this file. Of each (experiment, seed) the newest finished run counts.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from mlflow import MlflowClient
from mlflow.entities import Run

from oar_lightning.tracking.history import metric_history

HERE = Path(__file__).parent
METHODS = ("grpo", "oar_g", "oar_p")
COLORS = {"grpo": "#5b6570", "oar_g": "#d9822b", "oar_p": "#4a67c8"}
ACCURACY = "eval/chain/avg_at_4"


def newest_runs(client: MlflowClient) -> dict[tuple[str, int], Run]:
    experiment = client.get_experiment_by_name("oar_lightning")
    if experiment is None:
        sys.exit("no experiment oar_lightning in this store; run the commands in README.md first")
    runs: dict[tuple[str, int], Run] = {}
    for run in client.search_runs([experiment.experiment_id], "status = 'FINISHED'", max_results=1000):  # newest first
        key = (run.data.tags.get("experiment", ""), int(run.data.tags.get("seed", -1)))
        if key[0] in METHODS:
            runs.setdefault(key, run)
    return runs


def history(client: MlflowClient, run: Run, metric: str) -> list[tuple[int, float]]:
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


def markdown(rows: list[dict[str, Any]]) -> str:
    base = {r["seed"]: float(r["step_median_s"]) for r in rows if r["method"] == "grpo"}
    lines = [
        "| method | seed | before [95 %] | after [95 %] | gain, points | greedy before / after "
        "| wall s | median step s (scoring) | step / grpo |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        v = {k: float(x) for k, x in r.items() if isinstance(x, float)}
        ratio = f"{v['step_median_s'] / base[r['seed']]:.2f}" if r["seed"] in base else "-"
        lines.append(
            f"| {r['method']} | {r['seed']} "
            f"| {100 * v['before']:.1f} [{100 * v['before_low']:.1f}, {100 * v['before_high']:.1f}] "
            f"| {100 * v['after']:.1f} [{100 * v['after_low']:.1f}, {100 * v['after_high']:.1f}] "
            f"| {100 * (v['after'] - v['before']):+.1f} | {100 * v['greedy_before']:.1f} / {100 * v['greedy_after']:.1f} "
            f"| {v['wall_s']:.0f} | {v['step_median_s']:.2f} ({v['score_median_s']:.2f}) | {ratio} |"
        )
    return "\n".join(lines) + "\n"


def plot(client: MlflowClient, runs: dict[tuple[str, int], Run]) -> None:
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for method in METHODS:
        curves = [history(client, run, ACCURACY) for (m, _), run in sorted(runs.items()) if m == method]
        if not curves:
            continue
        for curve in curves:
            axis.plot(*zip(*curve, strict=True), color=COLORS[method], alpha=0.3, linewidth=1)
        steps = sorted(set.intersection(*(set(dict(c)) for c in curves)))
        means = [statistics.mean(dict(c)[s] for c in curves) for s in steps]
        axis.plot(
            steps, means, color=COLORS[method], linewidth=2.2, marker="o", label=f"{method} (mean of {len(curves)} seeds)"
        )
    axis.set(xlabel="optimizer step", ylabel="held-out accuracy, sampled at temperature 1", ylim=(0, 1))
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.savefig(HERE / "training_curve.png", dpi=130)


def main(uri: str) -> None:
    client = MlflowClient(uri)
    runs = newest_runs(client)
    order = sorted(runs, key=lambda key: (METHODS.index(key[0]), key[1]))
    rows = [row(client, *key, runs[key]) for key in order]
    with open(HERE / "runs.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (HERE / "table.md").write_text(markdown(rows))
    plot(client, runs)
    sys.stdout.write(markdown(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
