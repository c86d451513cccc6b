"""Tables and figure of the main job's runs.

    python reports/main_job/measure.py sqlite:///mlflow.db    # runs.csv, curves.csv, the figure and the tables
    python reports/main_job/measure.py --alone sqlite:///mlflow.db    # alone.csv, of runs made one after the other
    python reports/main_job/measure.py                        # the tables again, from runs.csv and alone.csv

Of each (experiment, seed) the newest finished run counts. The first table is that of the project's README, too; its cost of a
step is that of ../benchmark_tiny.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from mlflow import MlflowClient
from mlflow.entities import Run

from oar_lightning.benchmark.report import read_results
from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.wilson import Z, wilson_bounds
from oar_lightning.reporting.method_style import STYLES
from oar_lightning.reporting.statistics import mean_interval
from oar_lightning.tracking.history import metric_history

HERE = Path(__file__).parent
FRONT = HERE.parents[1] / "README.md"
BENCHMARK = HERE.parent / "benchmark_tiny" / "results.json"
NAMES = {"grpo": "GRPO", "oar_g": "OAR-G", "oar_p": "OAR-P"}
METHODS = tuple(NAMES)
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


def step_ratios() -> dict[str, float]:
    """Method -> a step's time over that of GRPO, the methods taking turns in one process."""
    steps = {variant: phases["step"] for variant, phases in read_results(BENCHMARK).items()}
    return {variant: step.step_ratio for variant, step in steps.items() if step.step_ratio is not None}


def final(rows: Sequence[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Method -> seed -> accuracy after training, %."""
    after: dict[str, dict[int, float]] = {}
    for r in rows:
        after.setdefault(r["method"], {})[int(r["seed"])] = 100 * float(r["after"])
    return after


def summary(rows: Sequence[dict[str, Any]], ratios: Mapping[str, float]) -> str:
    """How often the policy was right before training, and a table of the methods."""
    sampled_before, greedy_before = (
        f"{100 * statistics.mean(float(r[key]) for r in rows):.0f} %" for key in ("before", "greedy_before")
    )
    said = (
        f"Accuracy on held-out problems is {sampled_before} before training when the policy samples at temperature 1, and "
        f"{greedy_before} with greedy decoding. After {rows[0]['steps']} optimizer steps it is, when it samples:"
    )
    after = final(rows)
    methods = [["method", "seeds", "accuracy after, %", "minus grpo, points", "a step's time over grpo's"]]
    for method in (name for name in METHODS if name in after):
        pairs = [value - after["grpo"][seed] for seed, value in after[method].items() if seed in after.get("grpo", {})]
        paired = f"{mean_interval(pairs):+.1f}" if method != "grpo" and pairs else "-"
        cost = f"{ratios[method]:.2f}" if method in ratios else "-"
        methods.append([method, str(len(after[method])), f"{mean_interval(list(after[method].values())):.1f}", paired, cost])
    return f"{textwrap.fill(said, 120)}\n\n{markdown(methods)}"


def runs_table(rows: Sequence[dict[str, Any]]) -> str:
    step = {(r["method"], int(r["seed"])): float(r["step_median_s"]) for r in rows}
    after = final(rows)
    accuracies = ["before, %", "after, %", "gain, points", "minus grpo, points", "greedy before, %", "greedy after, %"]
    table = [["method", "seed", *accuracies, "wall s", "median step s (scoring)", "step / grpo"]]
    for r in rows:
        method, seed = r["method"], int(r["seed"])
        paired = method != "grpo" and seed in after.get("grpo", {})
        difference = f"{after[method][seed] - after['grpo'][seed]:+.1f}" if paired else "-"
        ratio = f"{step[method, seed] / step['grpo', seed]:.2f}" if ("grpo", seed) in step else "-"
        gain = f"{after[method][seed] - 100 * float(r['before']):+.1f}"
        accuracies = [sampled(r, "before"), sampled(r, "after"), gain, difference, greedy(r, "before"), greedy(r, "after")]
        seconds = [f"{float(r['wall_s']):.0f}", f"{step[method, seed]:.2f} ({float(r['score_median_s']):.2f})", ratio]
        table.append([method, str(seed), *accuracies, *seconds])
    return markdown(table)


def alone_table(rows: Sequence[dict[str, Any]]) -> str:
    """What a run takes and gains, evaluations before and after included."""
    table = [["method", "seed", "before, %", "after, %", "gain, points", "wall s", "median step s"]]
    for r in rows:
        gain = 100 * (float(r["after"]) - float(r["before"]))
        seconds = [f"{float(r['wall_s']):.0f}", f"{float(r['step_median_s']):.2f}"]
        table.append([r["method"], str(r["seed"]), sampled(r, "before"), sampled(r, "after"), f"{gain:+.1f}", *seconds])
    return markdown(table)


def plot(curves: dict[tuple[str, int], Curve]) -> None:
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for method in METHODS:
        own = [curve for (m, _), curve in curves.items() if m == method]
        if not own:
            continue
        color = STYLES[method].color
        for curve in own:
            axis.plot(*_percent(curve), color=color, alpha=0.3, linewidth=1)
        steps = sorted(set.intersection(*(set(dict(c)) for c in own)))
        means = [statistics.mean(dict(c)[s] for c in own) for s in steps]
        label = f"{NAMES[method]} (mean of {len(own)} seeds)"
        axis.plot(*_percent(zip(steps, means, strict=True)), color=color, linewidth=2.2, marker="o", label=label)
    axis.set(xlabel="update", ylabel="accuracy on held-out problems, sampled, %")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.savefig(HERE / "training_curve.png", dpi=130)


def _percent(curve: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    steps, shares = zip(*curve, strict=True)
    return [*steps], [100 * share for share in shares]


def read_curves() -> dict[tuple[str, int], Curve]:
    curves: dict[tuple[str, int], Curve] = {}
    for point in read_rows("curves.csv"):
        curves.setdefault((point["method"], int(point["seed"])), []).append((int(point["step"]), float(point["accuracy"])))
    return curves


def write(name: str, rows: Sequence[dict[str, Any]]) -> None:
    with open(HERE / name, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def read_rows(name: str = "runs.csv") -> list[dict[str, Any]]:
    with open(HERE / name, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def collect_alone(uri: str) -> None:
    client = MlflowClient(uri)
    write("alone.csv", [row(client, *key, run) for key, run in newest_runs(client).items()])


def collect(uri: str) -> None:
    client = MlflowClient(uri)
    runs = newest_runs(client)
    curves = {key: history(client, run, ACCURACY) for key, run in runs.items()}
    write("runs.csv", [row(client, *key, run) for key, run in runs.items()])
    points = [(*key, step, value) for key, curve in curves.items() for step, value in curve]
    write("curves.csv", [dict(zip(("method", "seed", "step", "accuracy"), point, strict=True)) for point in points])


def page(rows: Sequence[dict[str, Any]], alone: Sequence[dict[str, Any]], ratios: Mapping[str, float]) -> str:
    """All tables."""
    alone_too = f"One after the other, alone on the machine:\n\n{alone_table(alone)}"
    return f"{summary(rows, ratios)}\n\n{runs_table(rows)}\n\n{alone_too}\n\n### Checklist\n{checklist([*rows, *alone])}"


def checklist(rows: Sequence[dict[str, Any]]) -> str:
    """The items of the survey arXiv 2604.09459, appendix C."""
    hours = sum(float(r["wall_s"]) for r in rows) / 3600
    return markdown(
        [
            ["item", "here"],
            ["base model and size", "built-in policy `chain`, 0.34 M parameters"],
            ["training data, size, filters", "generated without end by seed; no filters"],
            ["granularity", "GRPO: completion; OAR-G, OAR-P: token"],
            ["family of the method", "docs/methods.md has that of each"],
            ["baseline without credit, same base model", "`grpo`, at the rate of all"],
            ["compute", "160 updates of 256 completions each, one process"],
            ["benchmarks and splits", f"{PROBLEMS} held-out problems of the same task"],
            ["metric", "sampled accuracy at temperature 1 after the last update, 4 samples a problem; greedy beside it"],
            ["time in all", f"{len(rows)} runs, {hours:.1f} hours by the clock; processor time was not kept"],
            ["mean length of completions, tokens", "not kept"],
            ["ablation of the credit", "none here; settle and families have it"],
            ["told the truth", "none"],
            ["spread", "Student's t 95 % intervals over seeds, Wilson's of single runs"],
            ["cost of credit", "a step's time over GRPO's, measured in turns (benchmark_tiny)"],
            ["shortest and longest of a batch, tokens", "not kept"],
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables and figure of the main job's runs.")
    parser.add_argument("store", nargs="?", help="MLflow's, e.g. sqlite:///mlflow.db; none: what the files have")
    parser.add_argument("--alone", action="store_true", help="its runs were made one after the other, alone on the machine")
    args = parser.parse_args()
    if args.store:
        (collect_alone if args.alone else collect)(args.store)
    rows, alone, ratios = read_rows(), read_rows("alone.csv"), step_ratios()
    plot(read_curves())
    fill(FRONT, summary(rows, ratios))
    fill(HERE / "README.md", page(rows, alone, ratios))


if __name__ == "__main__":
    main()
