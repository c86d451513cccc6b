"""The main job's tables: Wilson's intervals of a run, Student's t over seeds, and that the page's are those of runs.csv."""

from __future__ import annotations

import re
from typing import Any

import pytest
from scipy.stats import binomtest
from support.study_scripts import load_script

from oar_lightning.common.markdown import filled

main_job = load_script("main_job", "measure")


def run(method: str, seed: int, after: float, half: float = 0.0) -> dict[str, Any]:
    times = {"step_median_s": 2.0 if method == "grpo" else 3.0, "score_median_s": 1.0, "wall_s": 60.0}
    before = {"before": 0.4, "before_low": 0.4, "before_high": 0.4, "greedy_before": 1.0, "greedy_after": 0.5, "steps": 160}
    ends = {"after": after, "after_low": after - half, "after_high": after + half}
    return {"method": method, "seed": seed} | before | ends | times


def test_a_method_has_students_t_over_its_seeds_and_pairs() -> None:
    rows = [run("grpo", seed, 0.7) for seed in range(3)]
    rows += [run("oar_g", seed, after) for seed, after in enumerate((0.6, 0.62, 0.6))]
    # differences -10, -8, -10: mean -9.333, standard deviation 1.1547, t(2) = 4.3027
    shown = main_job.summary(rows, {"grpo": 1.0, "oar_g": 1.25})
    assert "| oar_g | 3 | 60.7 [57.8, 63.5] | -9.3 [-12.2, -6.5] | 1.25 |" in shown
    assert "| grpo | 3 | 70.0 | - | 1.00 |" in shown
    assert "is 40 % before" in shown
    assert [line.split(" | ")[5] for line in main_job.runs_table(rows).splitlines()[-3:]] == ["-10.0", "-8.0", "-10.0"]


def test_a_run_has_wilsons_interval_of_as_many_draws_as_its_width_says() -> None:
    # 0.5 +- 0.0692965 is the normal interval of 200 draws
    shown = main_job.sampled(run("grpo", 0, 0.5, 0.0692965), "after")
    exact = binomtest(100, 200).proportion_ci(method="wilson")
    assert shown == f"50.0 [{100 * exact.low:.1f}, {100 * exact.high:.1f}]"
    greedy = binomtest(256, 256).proportion_ci(method="wilson")
    assert main_job.greedy(run("grpo", 0, 0.5), "before") == f"100.0 [{100 * greedy.low:.1f}, 100.0]"


def test_the_committed_tables_are_those_of_the_runs_and_the_benchmark() -> None:
    rows, ratios = main_job.read_rows(), main_job.step_ratios()
    assert filled(main_job.FRONT) == main_job.summary(rows, ratios)
    assert filled(main_job.HERE / "README.md") == main_job.page(rows, main_job.read_rows("alone.csv"), ratios)


def test_a_run_alone_tells_what_it_gains_and_takes() -> None:
    assert main_job.alone_table([run("oar_g", 1, 0.72)]).splitlines()[-1].endswith(" | +32.0 | 60 | 3.00 |")


def test_steps_cost_what_the_benchmarks_page_says() -> None:
    page = (main_job.BENCHMARK.parent / "README.md").read_text(encoding="utf-8")
    for method, ratio in main_job.step_ratios().items():
        row = next(line for line in page.splitlines() if line.startswith(f"| {method} |"))
        assert re.search(rf"\| {ratio:.2f} (\(|\|)", row), row


def test_a_method_without_pairs_has_no_difference() -> None:
    assert "| oar_p | 1 | 60.0 (n = 1) | - | - |" in main_job.summary([run("grpo", 0, 0.7), run("oar_p", 1, 0.6)], {})


@pytest.mark.parametrize("seed", [0, 1])
def test_the_ratio_of_steps_is_that_of_the_same_seed(seed: int) -> None:
    text = main_job.runs_table([run("grpo", 0, 0.7), run("oar_g", seed, 0.6)])
    assert text.splitlines()[-1].endswith("| 1.50 |" if seed == 0 else "| - |")
