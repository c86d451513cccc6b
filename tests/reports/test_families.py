"""The table of methods at their best rates: choosing, pairing and what counts as a failure, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import sem, t
from support.study_scripts import load_script

from oar_lightning.reporting.runs import RunRecord

measure = load_script("families")


def row(method: str, lr: float, seed: int, accuracy: float, state: str = "complete", run_id: str = ""):
    name = run_id or f"{method}{lr}{seed}"
    return measure.Row("study", "asides", method, lr, seed, accuracy, 1.0, state, "revision", name)


RUNS = [
    *(row("grpo", 1e-4, seed, 0.50) for seed in range(5)),
    *(row("grpo", 2e-4, seed, 0.60) for seed in range(2)),
    *(row("grpo", 2e-4, seed, 0.40) for seed in range(2, 5)),
    *(row("other", 3e-4, seed, accuracy) for seed, accuracy in enumerate((0.61, 0.62, 0.41, 0.43))),
    row("other", 3e-4, 4, 0.1, state="failed"),
]


def test_runs_are_read_as_they_were_written(tmp_path) -> None:
    whole = row("own", 1e-4, 2, 0.5)._replace(cpu_s=70.25, grad_norm=0.3)
    measure.write_csv(tmp_path / "runs.csv", [whole])
    (found,) = measure.read_csv(tmp_path / "runs.csv")
    assert np.isnan([found.before, found.ess_ratio]).all(), "not recorded"
    assert found[:11] == whole[:11]
    assert found.grad_norm == 0.3


def lines(rows) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in measure.table(rows, {"other": 1.5}).splitlines()[2:]
    ]


def test_a_rate_is_chosen_by_the_tuning_seeds_and_compared_on_the_others() -> None:
    low, best, other = lines(RUNS)
    assert low[:4] == ["grpo", "0.0001", "50.0", "50.0"]
    assert best[2:6] == ["**60.0**", "40.0", "-", "-"], "the later seeds, which are worse, do not choose"
    differences = [1.0, 3.0, -30.0]
    low, high = t.interval(0.95, 2, np.mean(differences), sem(differences))
    assert other[4] == f"{np.mean(differences):+.1f} [{low:+.1f}, {high:+.1f}]"


def test_a_run_that_was_given_up_counts() -> None:
    other = lines(RUNS)[2]
    assert (other[3], other[6]) == ("31.3", "1"), "41, 43 and the 10 that it fell to"


def test_a_method_without_all_seeds_has_no_difference_of_them() -> None:
    found = lines([run for run in RUNS if (run.method, run.seed) != ("other", 0)])[2]
    assert (found[2], found[5], found[7]) == ("62.0 (n = 1)", "-", "1.50")


def test_a_run_made_twice_counts_once() -> None:
    again = [*RUNS, row("other", 3e-4, 4, 0.1, state="failed", run_id="again")]
    assert lines(again) == lines(RUNS)


@pytest.mark.parametrize(
    ("words", "method"),
    [
        ("+experiment=grpo", "grpo"),
        ("+experiment=grpo entropy=none", "grpo"),
        ("+experiment=grpo entropy=adaptive", "aer"),
        ("+experiment=grpo curriculum=difficulty", "curriculum"),
        ("+experiment=shear", "shear"),
        ("+experiment=shear gate.advantages=both", "shear"),
        ("+experiment=shear gate.advantages=negative", "shear_negative"),
        ("+experiment=oar_g scorer=oracle scorer.locate.which=first_error", "oracle"),
    ],
)
def test_a_run_is_called_by_what_its_command_chose(words: str, method: str) -> None:
    run = RunRecord("id", "name", "complete", "", 0, 1.0, {"overrides": words}, {}, {})
    assert measure.method_of(run) == method


def test_the_committed_table_is_that_of_the_committed_runs() -> None:
    page = (measure.HERE / "README.md").read_text(encoding="utf-8")
    assert measure.checklist(measure.read_csv(measure.HERE / "runs.csv")) in page, "python reports/families/measure.py"
    runs = measure.read_csv(measure.HERE / "runs.csv")
    for variant in {run.variant for run in runs}:
        own = [run for run in runs if run.variant == variant]
        for line in measure.table(own, {}).splitlines()[2:]:
            assert line.rsplit("|", 2)[0] in page, "python reports/families/measure.py"
