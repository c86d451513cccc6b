"""The study of families: its table, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.study_scripts import load_script

measure = load_script("families")


def row(method: str, lr: float, seed: int, accuracy: float, state: str = "complete"):
    return measure.Row(method, lr, seed, accuracy, 60.0, state, "0123abc", f"{method}{lr}{seed}")


def test_methods_are_paired_with_grpo_by_the_seeds_that_chose_no_rate() -> None:
    base = [row("grpo", 2e-4, seed, value) for seed, value in [(0, 0.9), (1, 0.8), (2, 0.50), (3, 0.54), (4, 0.58)]]
    other = [row("vineppo", 2e-4, seed, value) for seed, value in [(0, 0.1), (2, 0.51), (3, 0.56), (4, 0.61)]]
    single = [row("oracle", 3e-4, 3, 0.60), row("oracle", 3e-4, 2, 0.1, "failed")]
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in measure.table(base + other + single, {"grpo": 0.8}).splitlines()
    ]
    # differences 1, 2 and 3 points: 2 plus and minus 4.3027 / sqrt(3); -40 and 6: -17 plus and minus 12.706 * 23
    assert lines[2:] == [
        ["grpo", "0.0002", "85.0", "54.0", "-", "-", "0", "0.80"],
        ["vineppo", "0.0002", "10.0 (n = 1)", "56.0", "+2.0 [-0.5, +4.5]", "-", "0", "-"],
        ["oracle", "0.0003", "-", "35.0 (n = 2)", "-17.0 [-309.2, +275.2]", "-", "1", "-"],
    ]


def test_rows_survive_the_file(tmp_path: Path) -> None:
    rows = [row("vineppo", 1e-4, 2, 0.123456789012345), row("grpo", 3e-4, 10, 1.0)]
    measure.write_csv(tmp_path / "runs.csv", rows)
    assert measure.read_csv(tmp_path / "runs.csv") == rows


def test_the_rows_of_the_other_study_are_grpo_and_perfect_credit() -> None:
    found = measure.known_rows()
    assert {r.method for r in found} == {"grpo", "oracle"}
    best = [r.accuracy for r in found if (r.method, r.lr) == ("grpo", 2e-4)]
    assert 100 * sum(best) / len(best) == pytest.approx(54.53, abs=0.005), "as its page says"


def test_the_best_rate_is_that_of_the_tuning_seeds() -> None:
    results = {
        ("a", 1e-4): {0: 50.0, 1: 52.0, 2: 90.0},
        ("a", 2e-4): {0: 51.0, 1: 52.0},
        ("a", 3e-4): {0: 40.0, 1: 60.0},
        ("a", 6e-4): {0: 99.0},  # not run with both
        ("b", 1e-4): {0: 50.0, 1: 52.0},  # one rate is no choice
    }
    assert measure.best_rates(results) == {"a": 2e-4}
