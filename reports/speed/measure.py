"""Sets what was asked of speed against what the benchmarks measured, and against what their matrix products alone take.

    python reports/speed/measure.py

Reads results.json of benchmark_tiny, benchmark_wide and benchmark_authors, and fills README.md's table. It measures nothing.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import NamedTuple

from oar_lightning.benchmark import PhaseResult
from oar_lightning.benchmark.report import FEWEST_ROUNDS, read_results
from oar_lightning.common.markdown import fill, markdown

HERE = Path(__file__).parent
Results = dict[str, dict[str, PhaseResult]]
"""Variant -> phase -> what was measured."""


class Bar(NamedTuple):
    """What was asked of a ratio at most (or at least); and the ratio as measured, and of time if only products and attention
    took any, and at the floor. `result`: of the run that measured it."""

    what: str
    asked: float
    ratios: tuple[float, ...]
    result: PhaseResult
    at_most: bool = True

    def holds(self, ratio: float) -> bool:
        return ratio <= self.asked if self.at_most else ratio >= self.asked

    @property
    def verdict(self) -> str:
        if self.result.disturbed:
            return "not judged (disturbed)"
        if self.result.rounds < FEWEST_ROUNDS:
            return f"not judged (rounds: {self.result.rounds})"
        measured, *with_less = map(self.holds, self.ratios)
        if measured or not with_less:
            return "met" if measured else "not met"
        of_products, of_floor = with_less
        if not of_floor:
            return "not met; below the floor"
        return "not met; products allow it" if of_products else "not met; products alone exceed it"

    def row(self) -> list[str]:
        sign = "at most" if self.at_most else "at least"
        shown = [f"{ratio:.2f}" for ratio in self.ratios]
        return [self.what, f"{sign} {self.asked:g}", *shown, *["-"] * (3 - len(shown)), self.verdict]


def seconds(result: PhaseResult) -> tuple[float, float, float]:
    """Of a phase: as measured, of its products and attention alone, and at its floor."""
    if result.product_seconds is None:
        raise SystemExit(f"reports/benchmark_{result.preset} has no seconds of products: run its README's command again")
    return result.median_seconds, result.product_seconds, result.floor_seconds


def step_over_grpo(results: Results, variant: str, asked: float, name: str) -> Bar:
    grpo, measured = results["grpo"]["step"].median_seconds, results[variant]["step"].step_ratio
    assert measured is not None, "a step has one"
    with_less = (1 + of_scoring / grpo for of_scoring in seconds(results[variant]["scoring"])[1:])
    return Bar(f"a step with {name}, over GRPO's", asked, (measured, *with_less), results[variant]["step"])


def over_floor(results: Results, phase: str, asked: float) -> Bar:
    """Of a phase that does the same work whatever the method is: medians over the methods."""
    found = [phases[phase] for phases in results.values() if phase in phases]
    measured, of_products, floor = (median(column) for column in zip(*map(seconds, found), strict=True))
    return Bar(f"{phase}, over its floor", asked, (measured / floor, of_products / floor, 1.0), found[0])


def faster_than_published(results: Results, variant: str, asked: float, name: str) -> Bar:
    """The published function's time over ours: as measured, and if ours took less."""
    theirs = results[f"reference_{variant}"]["scoring"].median_seconds
    own = results[variant]["scoring"]
    ratios = tuple(theirs / taken for taken in seconds(own))
    return Bar(f"scoring by the authors' function, over {name}", asked, ratios, own, at_most=False)


def memory_of_published(results: Results, variant: str, asked: float, name: str) -> Bar:
    own, theirs = (results[v]["scoring"] for v in (variant, f"reference_{variant}"))
    assert own.peak_bytes, "a benchmark takes it"
    assert theirs.peak_bytes, "of the published function, too"
    return Bar(f"memory of {name}, over the authors' function", asked, (own.peak_bytes / theirs.peak_bytes,), own)


def peak_over_update(results: Results, variant: str, asked: float, name: str) -> Bar:
    """The peak of a method's scoring over that of its update."""
    own, update = results[variant]["scoring"], results[variant]["update"]
    assert own.peak_bytes, "a benchmark takes it"
    assert update.peak_bytes, "of the update, too"
    return Bar(f"memory of {name}, over the update's", asked, (own.peak_bytes / update.peak_bytes,), own)


def bars() -> dict[str, list[Bar]]:
    presets = ("tiny", "wide", "authors")
    found = {preset: read_results(HERE.parent / f"benchmark_{preset}" / "results.json") for preset in presets}
    authors = found["authors"]
    return {
        "tiny": [*of_a_step(found["tiny"]), step_over_grpo(found["tiny"], "total_effect_fast", 2, "fast total effect")],
        "wide": of_a_step(found["wide"]),
        "authors": [
            over_floor(authors, "rollout", 3),
            faster_than_published(authors, "oar_g", 4, "OAR-G"),
            peak_over_update(authors, "oar_g", 1, "OAR-G"),
            memory_of_published(authors, "oar_g", 2, "OAR-G"),
            faster_than_published(authors, "oar_p", 6, "exact OAR-P"),
        ],
    }


def of_a_step(results: Results) -> list[Bar]:
    return [
        over_floor(results, "rollout", 3),
        step_over_grpo(results, "oar_g", 1.15, "OAR-G"),
        peak_over_update(results, "oar_g", 1, "OAR-G"),
        step_over_grpo(results, "oar_p", 2.3, "exact OAR-P"),
        step_over_grpo(results, "oar_p_approximate", 1.4, "approximate OAR-P"),
    ]


def table() -> str:
    header = ["shape", "ratio", "asked", "measured", "if products alone took time", "at the floor", "verdict"]
    rows = [[f"[{p}](../benchmark_{p}/README.md)", *bar.row()] for p, own in bars().items() for bar in own]
    return markdown([header, *rows])


def main() -> None:
    fill(HERE / "README.md", table())


if __name__ == "__main__":
    main()
