"""Families of credit against GRPO: the table of README.md.

    python reports/families/measure.py sqlite:///mlflow.db    # runs.csv of the sweeps, then the table
    python reports/families/measure.py                        # the table of what runs.csv holds
    python reports/families/measure.py --cost                 # cost.json: processor seconds of a step

GRPO and perfect credit have been run for the study `methods`; their rows are read from its runs.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from mlflow import MlflowClient

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.reporting import ReportConfig, read_runs
from oar_lightning.reporting.factors import level
from oar_lightning.reporting.statistics import Interval, mean_interval

HERE = Path(__file__).parent
METHODS = HERE.parent / "2026-11-21-methods" / "runs.csv"
KNOWN = {("uniform", "default"): "grpo", ("oracle", "first_error"): "oracle"}
"""Scorer and `scorer.locate.which` of the rows that are read from METHODS."""

VINEPPO = ("vineppo", "scorer/segments=task_steps", "scorer.samples=2")
ARMS = (("grpo",), ("eighty_twenty",), ("information_gain",), ("total_effect_fast",), VINEPPO)
TUNING, REPORTED = (0, 1), (2, 3, 4)
"""Seeds by which GRPO's rate was chosen, and those that are compared."""

BASELINE = ("grpo", 2e-4)
SHORT, LONG = 2, 12
CHEAP = [
    *("+variant=asides", "num_threads=1", "logger=none", "checkpoint_every_n_steps=0", "schedule.warmup_steps=1"),
    *("evaluation.every_n_steps=0", "evaluation.problems=1", "evaluation.samples=1", "evaluation.heatmap=false"),
]


class Row(NamedTuple):
    """A run; `accuracy` is the sampled one on held-out problems at its last evaluation, `state` complete or failed (given up,
    because that accuracy was below half of the one before training)."""

    method: str
    lr: float
    seed: int
    accuracy: float
    seconds: float
    state: str
    revision: str
    run_id: str


def read_store(uri: str) -> list[Row]:
    config = ReportConfig(filter="tags.sweep LIKE 'families_%'", name="families")
    _, runs = read_runs(MlflowClient(uri), "oar_lightning", config)
    return sorted(
        Row(
            method=str(level(run, "experiment")),
            lr=float(level(run, "optimizer.lr")),
            seed=int(run.seed),
            accuracy=run.metrics["eval/chain/avg_at_4"],
            seconds=run.duration_s,
            state=run.state,
            revision=run.tags["git_revision"],
            run_id=run.run_id,
        )
        for run in runs
        if run.state in ("complete", "failed")
    )


def read_csv(path: Path) -> list[Row]:
    with path.open(encoding="utf-8") as file:
        return [
            Row(
                method=r["method"],
                lr=float(r["lr"]),
                seed=int(r["seed"]),
                accuracy=float(r["accuracy"]),
                seconds=float(r["seconds"]),
                state=r["state"],
                revision=r["revision"],
                run_id=r["run_id"],
            )
            for r in csv.DictReader(file)
        ]


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)


def known_rows() -> list[Row]:
    """Rows of GRPO and of perfect credit, from the study `methods`."""
    with METHODS.open(encoding="utf-8") as file:
        return [
            Row(
                method=KNOWN[r["scorer"], r["scorer.locate.which"]],
                lr=float(r["optimizer.lr"]),
                seed=int(r["seed"]),
                accuracy=float(r["objective"]),
                seconds=float(r["duration_s"]),
                state=r["state"],
                revision=r["git_revision"],
                run_id=r["run_id"],
            )
            for r in csv.DictReader(file)
            if r["state"] == "complete" and (r["scorer"], r["scorer.locate.which"]) in KNOWN
        ]


def table(rows: Sequence[Row], cost: dict[str, float]) -> str:
    """A line for each method and learning rate. Bold: a method's best rate. A run that was given up counts with its last
    accuracy: without it a method would look better for failing.

    Raises:
        KeyError: where the baseline has no run of a reported seed.
    """
    results: dict[tuple[str, float], dict[int, float]] = {}
    failed: Counter[tuple[str, float]] = Counter()
    for row in rows:
        results.setdefault((row.method, row.lr), {})[row.seed] = 100 * row.accuracy
        failed[row.method, row.lr] += row.state != "complete"
    base, best = results[BASELINE], best_rates(results)
    header = ["method", "rate", "seeds 0, 1", "seeds 2 to 4", "difference from GRPO [95 %]", "of seeds 0 to 4 [95 %]"]
    lines = [[*header, "given up", "s a step"]]
    order = [arm[0] for arm in ARMS]
    for (method, lr), found in sorted(results.items(), key=lambda item: ([*order, item[0][0]].index(item[0][0]), item[0][1])):
        means = [mean_of(found, seeds) for seeds in (TUNING, REPORTED)]
        if best.get(method) == lr:
            means[0] = f"**{means[0]}**"
        reported = [found[seed] - base[seed] for seed in REPORTED if seed in found]
        every = (*TUNING, *REPORTED)
        together = [found[seed] - base[seed] for seed in every] if found.keys() & base.keys() >= set(every) else []
        other = (method, lr) != BASELINE
        differences = [shown(mean_interval(d) if other and d else None) for d in (reported, together)]
        step = f"{cost[method]:.2f}" if method in cost else "-"
        lines.append([method, f"{lr:g}", *means, *differences, str(failed[method, lr]), step])
    return markdown(lines)


def mean_of(found: dict[int, float], seeds: Sequence[int]) -> str:
    """The mean over the seeds; how many there are, where some are missing."""
    values = [found[seed] for seed in seeds if seed in found]
    if not values:
        return "-"
    return f"{sum(values) / len(values):.1f}" + (f" (n = {len(values)})" if len(values) < len(seeds) else "")


def best_rates(results: dict[tuple[str, float], dict[int, float]]) -> dict[str, float]:
    """Method -> the learning rate with the highest mean of the tuning seeds, of methods that were tuned at three rates."""
    tuned: dict[str, dict[float, float]] = {}
    for (method, lr), found in results.items():
        if found.keys() >= set(TUNING):
            tuned.setdefault(method, {})[lr] = sum(found[seed] for seed in TUNING)
    return {method: max(rates, key=lambda lr: rates[lr]) for method, rates in tuned.items() if len(rates) >= 3}


def shown(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    between = f" [{interval.low:+.1f}, {interval.high:+.1f}]" if interval.low < interval.high else ""
    return f"{interval.mean:+.1f}{between}"


def processor_seconds(arm: Sequence[str], steps: int) -> float:
    """Of a whole run. Unlike the seconds on a clock they do not count what else the machine does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        settings = [*CHEAP, f"+experiment={arm[0]}", *arm[1:], f"trainer.max_steps={steps}", f"output_root={folder}"]
        subprocess.run([sys.executable, "-m", "oar_lightning", *settings], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_cost() -> dict[str, float]:
    found = {}
    for arm in ARMS:
        found[arm[0]] = (processor_seconds(arm, LONG) - processor_seconds(arm, SHORT)) / (LONG - SHORT)
        sys.stderr.write(f"{arm[0]:20} {found[arm[0]]:.2f} s a step\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", nargs="?", help="MLflow's URI, to write runs.csv from")
    parser.add_argument("--cost", action="store_true")
    options = parser.parse_args()
    if options.cost:
        (HERE / "cost.json").write_text(json.dumps(measure_cost(), indent=1) + "\n", encoding="utf-8")
    if options.store:
        write_csv(HERE / "runs.csv", read_store(options.store))
    new = [row for row in read_csv(HERE / "runs.csv") if row.method not in KNOWN.values()]
    fill(HERE / "README.md", table([*known_rows(), *new], json.loads((HERE / "cost.json").read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
