"""Which lead the pairs of README.md find with a power of 80 %, if pairs scatter as those of reports/families.

python reports/settle/power.py
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.stats import nct, t

HERE = Path(__file__).parent
RATE = {"graph": 1.5e-4, "asides": 2e-4}
"""Task -> the rate at which both were best there."""


def differences(task: str) -> list[float]:
    """OAR-G minus GRPO of each pair, in points."""
    found: dict[str, dict[str, float]] = {"oar_g": {}, "grpo": {}}
    with (HERE.parent / "families" / "runs.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["variant"] == task and row["method"] in found and float(row["lr"]) == RATE[task]:
                found[row["method"]][row["seed"]] = 100 * float(row["accuracy"])
    own, base = found["oar_g"], found["grpo"]
    return [own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())]


def smallest_lead(pairs: int, deviation: float, power: float = 0.8) -> float:
    """Of a two-sided t-test at 0.05, in units of the differences' standard deviation `deviation`."""
    critical = t.ppf(0.975, pairs - 1)

    def missing(lead: float) -> float:
        return float(nct.sf(critical, pairs - 1, lead / deviation * pairs**0.5)) - power

    return float(brentq(missing, 1e-6 * deviation, 3 * deviation))


def main() -> None:
    for task in RATE:
        found = differences(task)
        deviation = float(np.std(found, ddof=1))
        leads = ", ".join(f"{n} pairs find {smallest_lead(n, deviation):.1f}" for n in (12, 24, 48))
        sys.stdout.write(f"{task}: {len(found)} pairs, standard deviation {deviation:.1f}; {leads} points\n")


if __name__ == "__main__":
    main()
