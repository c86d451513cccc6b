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


def test_what_was_recorded_is_shown_as_means_of_the_runs_that_have_it() -> None:
    own = [row("own", 1e-4, seed, 0.5)._replace(cpu_s=60.0 + seed) for seed in (0, 1)]
    own[1] = own[1]._replace(grad_norm=0.25)
    last = measure.ends_table([*own, row("old", 1e-4, 0, 0.5)]).splitlines()[-1]
    assert [cell.strip() for cell in last.strip("|").split("|")] == ["own", "0.0001", "2", "0.25", "-", "-", "-", "60"]
    assert measure.ends_table([row("old", 1e-4, 0, 0.5)]) == ""


def test_only_a_policy_that_reads_solutions_is_told_one() -> None:
    assert measure.arm("graph_hints", "rlsd") == ("+experiment=rlsd", "scorer.hint=correct_sibling")
    assert measure.arm("graph", "rlsd") == ("+experiment=rlsd",)
    assert measure.arm("graph_hints", "rlcsd") == ("+experiment=rlcsd",), "which tells siblings anyway"


@pytest.mark.parametrize("variant", ["asides", "one_step", "graph", "graph_hints"])
def test_a_command_is_read_as_what_it_ran(variant: str) -> None:
    """Variant, method and rate of a run's row are those that its sweep was started with."""
    train = load_script("families", "train")
    for method in ("grpo", "aer", "rlsd", "capo", "shuffled", "oracle_results"):
        for lr in train.rates(variant, method):
            words = train.command(variant, method, lr, (0,))[5:]
            told = " ".join(word for word in words if not word.startswith("hydra.")).replace("choice(0)", "0")
            run = RunRecord("id", "name", "complete", "", 0, 1.0, {"overrides": told}, {}, {})
            assert (measure.variant_of(run), measure.method_of(run)) == (variant, method)


def test_rates_are_three_and_lower_where_the_lowest_was_best() -> None:
    train = load_script("families", "train")
    assert train.rates("graph", "grpo") == ("1e-4", "1.5e-4", "2e-4")
    assert train.rates("graph", "shear") == ("5e-5", "1e-4", "1.5e-4")
    assert train.rates("graph", "prime") == ("2.5e-5", "5e-5", "1e-4")
    assert train.rates("asides", "shear") == ("1e-4", "2e-4", "3e-4")


def test_what_runs_csv_has_is_not_trained_again(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = load_script("families", "train")
    had = [row("grpo", lr, seed, 0.6 if lr == 2e-4 else 0.5) for lr in (1e-4, 2e-4, 3e-4) for seed in (0, 1)]
    measure.write_csv(tmp_path / "runs.csv", [*had[:-1], row("grpo", 2e-4, 3, 0.5)])
    started = []

    def run(words, **_) -> None:
        started.append(" ".join(words))
        if "optimizer.lr=3e-4" in words:
            measure.write_csv(tmp_path / "runs.csv", [*had, row("grpo", 2e-4, 3, 0.5)])

    monkeypatch.setattr(train, "HERE", tmp_path)
    monkeypatch.setattr(train.subprocess, "run", run)
    train.train("asides", "grpo", tmp_path)
    assert len(started) == 2
    assert "optimizer.lr=3e-4 seed=choice(1) " in started[0]
    assert "optimizer.lr=2e-4 seed=choice(2,4) " in started[1], "the best, with the seeds that are missing"


def test_what_runs_csv_has_is_repeated_where_that_is_asked_for(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = load_script("families", "train")
    measure.write_csv(tmp_path / "runs.csv", [row("grpo", 1e-4, seed, 0.5) for seed in range(5)])
    started = []
    monkeypatch.setattr(train, "HERE", tmp_path)
    monkeypatch.setattr(train.subprocess, "run", lambda words, **_: started.append(" ".join(words)))
    with pytest.raises(KeyError, match="grpo"):  # none of these starts has left a run to choose by
        train.train("asides", "grpo", tmp_path, repeat=True)
    assert "optimizer.lr=1e-4 seed=choice(0,1) " in started[0]
