"""What was asked of speed: ratios from measurements that are made here, and what is said of them."""

from __future__ import annotations

import dataclasses

import pytest
from support.study_scripts import load_script

from oar_lightning.benchmark import PhaseResult
from oar_lightning.common.markdown import filled

speed = load_script("speed", "measure")


@pytest.mark.parametrize(
    ("measured", "of_products", "of_floor", "verdict"),
    [
        (1.1, 1.05, 1.01, "met"),
        (1.15, 1.1, 1.0, "met"),
        (1.3, 1.1, 1.05, "not met; products allow it"),
        (1.3, 1.2, 1.05, "not met; products alone exceed it"),
        (1.3, 1.2, 1.16, "not met; below the floor"),
    ],
)
def test_what_is_said_of_a_bar(measured: float, of_products: float, of_floor: float, verdict: str) -> None:
    ratios, result = (measured, of_products, of_floor), phase(1.0)
    assert speed.Bar("a step", 1.15, ratios, result).verdict == verdict
    assert speed.Bar("a step", 1 / 1.15, tuple(1 / ratio for ratio in ratios), result, at_most=False).verdict == verdict


def test_a_median_of_two_rounds_or_of_a_busy_machine_is_no_verdict() -> None:
    few, busy = (dataclasses.replace(phase(1.0), **change) for change in ({"rounds": 2}, {"disturbed": 1}))
    assert speed.Bar("a step", 1.15, (9.0, 8.0, 7.0), few).verdict == "not judged (rounds: 2)"
    assert speed.Bar("a step", 1.15, (1.0, 0.9, 0.8), busy).verdict == "not judged (disturbed)"


@pytest.mark.parametrize(("ratio", "verdict"), [(2.0, "met"), (2.1, "not met")])
def test_memory_has_no_time_without_all_else(ratio: float, verdict: str) -> None:
    assert speed.Bar("memory", 2, (ratio,), phase(1.0)).row() == ["memory", "at most 2", f"{ratio:.2f}", "-", "-", verdict]


def phase(
    median: float,
    products: float | None = None,
    floor: float = 0.1,
    peak: int | None = None,
    step_ratio: float | None = None,
) -> PhaseResult:
    return PhaseResult("made", "", "", median, 0.0, 0.0, peak, 0.0, floor, 0.0, 0.0, products, step_ratio, rounds=3)


def test_ratios_of_a_step_and_of_a_phase() -> None:
    """A rollout is the same work with each method: none of them may be picked for its luck."""
    results = {
        "grpo": {"step": phase(2.0), "rollout": phase(0.6, products=0.5, floor=0.3)},
        "entropy": {"rollout": phase(0.9, products=0.6, floor=0.3)},
        "oar_p": {"rollout": phase(1.4, products=0.9, floor=0.3)},
        "oar_g": {
            "step": phase(2.8, step_ratio=1.4),
            "scoring": phase(0.8, products=0.4, floor=0.2, peak=30),
            "update": phase(1.2, peak=40),
        },
        "reference_oar_g": {"scoring": phase(1.6, peak=10)},
    }
    assert speed.step_over_grpo(results, "oar_g", 1.15, "OAR-G").ratios == pytest.approx((1.4, 1.2, 1.1))
    assert speed.over_floor(results, "rollout", 3).ratios == pytest.approx((3, 2, 1))
    assert speed.faster_than_published(results, "oar_g", 4, "OAR-G").ratios == pytest.approx((2, 4, 8))
    assert speed.memory_of_published(results, "oar_g", 2, "OAR-G").ratios == (3,)
    assert speed.peak_over_update(results, "oar_g", 1, "OAR-G").ratios == (0.75,)
    with pytest.raises(SystemExit, match="benchmark_made has no seconds of products: run its README's command again"):
        speed.over_floor(results, "step", 3)


def test_the_page_has_the_table_of_the_files() -> None:
    assert filled(speed.HERE / "README.md") == speed.table()
