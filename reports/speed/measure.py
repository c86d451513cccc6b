"""Sets what was asked of speed against what the benchmarks measured, and against what their matrix products alone take.

    python reports/speed/measure.py

Reads results.json of benchmark_tiny and benchmark_authors, and fills the table of README.md. It measures nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from oar_lightning.common.markdown import fill, markdown

HERE = Path(__file__).parent


class Bar(NamedTuple):
    """What was asked of a ratio at most (or at least); and the ratio as measured, if only products and attention took time,
    and at the floor."""

    what: str
    asked: float
    ratios: tuple[float, float, float]
    at_most: bool = True

    def holds(self, ratio: float) -> bool:
        return ratio <= self.asked if self.at_most else ratio >= self.asked

    @property
    def verdict(self) -> str:
        measured, of_products, of_floor = map(self.holds, self.ratios)
        if measured:
            return "met"
        if not of_floor:
            return "not met; below the floor"
        return "not met; products allow it" if of_products else "not met; products alone exceed it"

    def row(self) -> list[str]:
        sign = "at most" if self.at_most else "at least"
        return [self.what, f"{sign} {self.asked:g}", *(f"{ratio:.2f}" for ratio in self.ratios), self.verdict]


Results = dict[tuple[str, str], dict[str, float]]


def read(preset: str) -> Results:
    """(variant, phase) -> its measurements."""
    rows = json.loads((HERE.parent / f"benchmark_{preset}" / "results.json").read_text())
    return {(row["variant"], row["phase"]): row for row in rows}


def step_over_grpo(results: Results, variant: str, asked: float, name: str) -> Bar:
    grpo, scoring = results["grpo", "step"]["median_seconds"], results[variant, "scoring"]
    of_products, of_floor = (1 + scoring[key] / grpo for key in ("product_seconds", "floor_seconds"))
    return Bar(f"a step with {name}, over GRPO's", asked, (results[variant, "step"]["step_ratio"], of_products, of_floor))


def over_floor(results: Results, phase: str, asked: float) -> Bar:
    own = results["grpo", phase]
    floor = own["floor_seconds"]
    return Bar(f"{phase}, over its floor", asked, (own["median_seconds"] / floor, own["product_seconds"] / floor, 1.0))


def faster_than_published(results: Results, variant: str, asked: float, name: str) -> Bar:
    """The published function's time over ours: as measured, and if ours took less."""
    theirs, own = results[f"reference_{variant}", "scoring"]["median_seconds"], results[variant, "scoring"]
    measured, of_products, of_floor = (theirs / own[key] for key in ("median_seconds", "product_seconds", "floor_seconds"))
    return Bar(f"scoring by the authors' function, over {name}", asked, (measured, of_products, of_floor), at_most=False)


def memory_of_published(results: Results, variant: str, asked: float, name: str) -> Bar:
    own, theirs = (results[v, "scoring"]["peak_bytes"] for v in (variant, f"reference_{variant}"))
    return Bar(f"memory of {name}, over the authors' function", asked, (own / theirs, own / theirs, own / theirs))


def bars() -> dict[str, list[Bar]]:
    tiny, authors = (read(preset) for preset in ("tiny", "authors"))
    return {
        "tiny": [
            over_floor(tiny, "rollout", 3),
            step_over_grpo(tiny, "oar_g", 1.15, "OAR-G"),
            step_over_grpo(tiny, "oar_p", 2.3, "exact OAR-P"),
            step_over_grpo(tiny, "oar_p_approximate", 1.4, "approximate OAR-P"),
            step_over_grpo(tiny, "total_effect_fast", 2, "fast total effect"),
        ],
        "authors": [
            faster_than_published(authors, "oar_g", 4, "OAR-G"),
            memory_of_published(authors, "oar_g", 2, "OAR-G"),
            faster_than_published(authors, "oar_p", 6, "exact OAR-P"),
        ],
    }


def table() -> str:
    header = ["shape", "ratio", "asked", "measured", "if products alone took time", "at the floor", "verdict"]
    rows = [[f"[{p}](../benchmark_{p}/README.md)", *bar.row()] for p, own in bars().items() for bar in own]
    return markdown([header, *rows])


def main() -> None:
    fill(HERE / "README.md", table())


if __name__ == "__main__":
    main()
