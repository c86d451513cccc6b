"""Training runs of one variant, method against method: tables of final accuracy, paired by seed, from MLflow alone.

    python reports/headroom/training.py sqlite:///mlflow.db EXPERIMENT [--baseline grpo]

Runs are told apart by their tags `experiment` (the method) and `seed` and their learning rate; of equal ones the newest
finished counts. Intervals: 95 %, Student's t over seeds; differences are of runs with the same seed, which start from the
same completions.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict

from mlflow import MlflowClient
from scipy.stats import t as student_t

from oar_lightning.common.markdown import markdown

Runs = dict[tuple[str, float], dict[int, float]]
"""(method, learning rate) -> seed -> final accuracy."""


def final_accuracies(client: MlflowClient, experiment: str) -> Runs:
    found = client.get_experiment_by_name(experiment)
    if found is None:
        sys.exit(f"no experiment {experiment} in this store; run the commands in README.md first")
    runs: Runs = defaultdict(dict)
    for run in client.search_runs([found.experiment_id], "status = 'FINISHED'", max_results=1000):  # newest first
        data = run.data
        # of the only evaluation set, whichever task's it is
        (metric,) = [
            m for m in data.metrics if m.startswith("eval/") and m.endswith(f"/avg_at_{data.params['evaluation.samples']}")
        ]
        key = (data.tags["experiment"], float(data.params["optimizer.lr"]))
        runs[key].setdefault(int(data.tags["seed"]), data.metrics[metric])
    return dict(runs)


def with_interval(values: list[float]) -> tuple[float, float, float]:
    """Mean and its 95 % interval (Student's t); a single value has none."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    half = float(student_t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def best_rates(runs: Runs) -> dict[str, float]:
    """Each method's learning rate with the highest mean over the seeds that all its rates have run."""
    rates: dict[str, float] = {}
    for method in {m for m, _ in runs}:
        own = {lr: seeds for (m, lr), seeds in runs.items() if m == method}
        shared = set.intersection(*(set(seeds) for seeds in own.values()))
        if not shared:
            sys.exit(f"{method}: its learning rates {sorted(own)} share no seed; run one seed at all of them")
        rates[method] = max(own, key=lambda lr: statistics.fmean(own[lr][s] for s in shared))
    return rates


def points(values: tuple[float, float, float]) -> str:
    mean, low, high = (100 * v for v in values)
    return f"{mean:.1f}" if low != low else f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def tables(runs: Runs, baseline: str) -> str:
    rows = [["method", "learning rate", "seeds", "final accuracy, %"]]
    for (method, lr), seeds in sorted(runs.items()):
        rows.append([method, f"{lr:g}", ", ".join(map(str, sorted(seeds))), points(with_interval(list(seeds.values())))])
    best = best_rates(runs)
    base = runs[baseline, best[baseline]]
    paired = [["method at its best of these rates", "learning rate", "n", f"over {baseline} at its best, points", "by seed"]]
    for method in sorted(m for m in best if m != baseline):
        own = runs[method, best[method]]
        shared = sorted(set(own) & set(base))
        differences = [own[s] - base[s] for s in shared]
        if differences:
            by_seed = ", ".join(f"{100 * d:+.1f}" for d in differences)
            paired.append([method, f"{best[method]:g}", str(len(shared)), points(with_interval(differences)), by_seed])
    return f"{markdown(rows)}\n\nBest of these rates for {baseline}: {best[baseline]:g}.\n\n{markdown(paired)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="MLflow tracking URI")
    parser.add_argument("experiment", help="MLflow experiment of the variant")
    parser.add_argument("--baseline", default="grpo")
    options = parser.parse_args()
    runs = final_accuracies(MlflowClient(options.store), options.experiment)
    sys.stdout.write(tables(runs, options.baseline) + "\n")


if __name__ == "__main__":
    main()
