"""The runs of README.md's tables: each method at three learning rates with the seeds that choose one, the best with the others.

    python reports/families/train.py graph shear,acpo --folder families     # goes on where it was
    python reports/families/measure.py sqlite:///families/mlflow.db field   # adds the ended runs to runs.csv, writes the tables

What runs.csv has is not run again but with --repeat. A command takes one core: several can run side by side, each with a
folder of its own.
"""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).parent
families = SimpleNamespace(**runpy.run_path(str(HERE / "measure.py")))

POLICIES = {"graph_hints": ("+variant=graph", "policy=graph_hints")}
"""Variant -> its overrides, where it is a variant with another policy."""

RATES = {
    "asides": ("1e-4", "2e-4", "3e-4"),
    "one_step": ("1.5e-4", "3e-4", "6e-4"),
    "graph": ("1e-4", "1.5e-4", "2e-4"),
    "graph_hints": ("1e-4", "1.5e-4", "2e-4"),
}
LOWER = {"shear": 1, "istar": 1, "acpo_add": 1, "spro": 2, "prime": 2}
"""Methods that were best at the lowest of their rates on `asides`, or that failed at each: by how many places of LADDER their
rates are lower on `LOWERED`."""
LOWERED = ("graph", "graph_hints")
LADDER = ("2.5e-5", "5e-5", "1e-4", "1.5e-4", "2e-4")

COMMON = ("num_threads=1", "evaluation.greedy=false", "evaluation.heatmap=false")
EVERY = {"asides": 80, "one_step": 80}
"""Variant -> updates between two evaluations, where there are any but the first and the last."""

FAILURES = "hydra.sweeper.max_failure_rate=1"
"""A method of which most runs are given up goes on to its last seed."""


def rates(variant: str, method: str) -> tuple[str, ...]:
    if method not in LOWER or variant not in LOWERED:
        return RATES[variant]
    first = LADDER.index(RATES[variant][0]) - LOWER[method]
    return LADDER[first : first + 3]


def command(variant: str, method: str, lr: str, seeds: Sequence[int]) -> list[str]:
    """The sweep of a method at a rate. Started again it goes on where it was."""
    name = f"field_{variant}_{method}_{lr}_from{seeds[0]}"
    arguments = [
        *POLICIES.get(variant, (f"+variant={variant}",)),
        *COMMON,
        f"evaluation.every_n_steps={EVERY.get(variant, 0)}",
        *families.arm(variant, method),
        *(f"optimizer.lr={lr}", f"seed=choice({','.join(map(str, seeds))})", f"hydra.sweeper.study_name={name}", FAILURES),
    ]
    return [sys.executable, "-m", "oar_lightning", "-m", "+sweeps=families", *arguments]


def ended(variant: str, method: str, folder: Path, repeat: bool) -> dict[tuple[str, float], dict[int, float]]:
    """(Method, rate) -> seed -> accuracy, of the folder's store and, unless they are to be repeated, of runs.csv."""
    store = folder / "mlflow.db"
    rows = [] if repeat else families.read_csv(HERE / "runs.csv")
    if store.exists():
        rows += families.read_store(f"sqlite:///{store.resolve()}", "field", whole=False)
    found: dict[tuple[str, float], dict[int, float]] = {}
    for row in rows:
        if (row.variant, row.method) == (variant, method):
            found.setdefault((method, row.lr), {})[row.seed] = row.accuracy
    return found


def train(variant: str, method: str, folder: Path, repeat: bool = False) -> None:
    """The runs that are missing: those that choose the rate, then the best rate's others."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parents[1]), os.environ.get("PYTHONPATH")]))
    }

    def start(lr: str, seeds: Sequence[int]) -> None:
        had = ended(variant, method, folder, repeat).get((method, float(lr)), {})
        if missing := [seed for seed in seeds if seed not in had]:
            subprocess.run(command(variant, method, lr, missing), cwd=folder, env=environment, check=True)

    for lr in rates(variant, method):
        start(lr, families.TUNING)
    chosen = families.best_rates(ended(variant, method, folder, repeat))[method]
    start(next(lr for lr in {*LADDER, *RATES[variant]} if float(lr) == chosen), families.REPORTED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    methods_of = families.ARMS | families.CONTROLS
    parser.add_argument("variant", choices=list(RATES))
    parser.add_argument("methods", help=f"names with commas of {', '.join(methods_of)}")
    parser.add_argument("--folder", type=Path, required=True, help="of the store, the studies and the runs")
    parser.add_argument("--repeat", action="store_true", help="run what runs.csv has, too")
    options = parser.parse_args()
    methods = options.methods.split(",")
    if unknown := [name for name in methods if name not in methods_of]:
        parser.error(f"no such method: {', '.join(unknown)}; there are {', '.join(methods_of)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in methods:
        train(options.variant, name, options.folder, options.repeat)


if __name__ == "__main__":
    main()
