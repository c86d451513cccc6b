"""The study of what predicts training: gains by hand, and correlations against scipy."""

from __future__ import annotations

import math

import pytest
from scipy.stats import spearmanr
from support.composing import checked
from support.study_scripts import load_script

measure = load_script("lab_training")


def test_a_gain_is_paired_by_seed_at_each_methods_own_best_rate() -> None:
    base = [
        (measure.BASELINE, 2e-4, 0, 50.0),
        (measure.BASELINE, 2e-4, 1, 52.0),
        (measure.BASELINE, 2e-4, 2, 54.0),
        (measure.BASELINE, 1e-4, 0, 51.5),
    ]
    # at 1e-4 it is better by the tuning seeds; seed 7 has no partner
    own = [("m", 1e-4, 0, 56.0), ("m", 1e-4, 1, 55.0), ("m", 1e-4, 2, 50.0), ("m", 1e-4, 7, 0.0), ("m", 3e-4, 0, 55.4)]
    found = measure.gains([measure.Run(*run) for run in base + own])
    assert found.keys() == {"m"}
    # GRPO's run at 1e-4 counts for nothing: one tuning seed is missing there
    assert found["m"] == measure.Gain(1e-4, 2, {0: 6.0, 1: 3.0, 2: -4.0})


def test_ranks_are_those_of_scipy() -> None:
    first, second = [1.0, 2.0, 2.0, 5.0, 0.5], [3.0, 1.0, 4.0, 4.0, 2.0]
    assert measure.spearman(first, second) == pytest.approx(spearmanr(first, second).statistic)
    assert math.isnan(measure.spearman([1.0, 1.0], [1.0, 2.0]))


def test_a_measure_that_orders_methods_as_training_does_predicts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "DRAWS", 400)
    gained = {f"m{i}": measure.Gain(1e-4, 3, {0: float(i), 1: i + 0.1}) for i in range(12)}
    perfect = measure.predict("auroc", {name: gain.mean**3 for name, gain in gained.items()}, gained)
    assert (perfect.methods, perfect.rho) == (12, pytest.approx(1.0))
    assert perfect.low > 0.9
    useless = measure.predict("auroc", {f"m{i}": float(i * 5 % 12) for i in range(12)}, gained)
    assert useless.low < 0 < useless.high
    assert measure.predict("auroc", {"m0": 1.0, "m1": 2.0}, gained) is None, "too few methods"
    nine = measure.predict("auroc", {f"m{i}": float(i) for i in range(9)}, gained)
    assert measure.shown(nine) == "+1.00 (9 methods)", "too few for resamples"
    assert math.isnan(nine.low)


def test_what_a_seed_does_to_all_methods_is_no_scatter_of_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "DRAWS", 400)
    values = {f"m{i}": float(i) for i in range(12)}

    def found(shifts: dict[int, float]):
        return measure.predict(
            "m", values, {n: measure.Gain(1e-4, 3, {s: v + x for s, x in shifts.items()}) for n, v in values.items()}
        )

    assert found({0: -50.0, 1: 0.0, 2: 70.0}) == found({0: 0.0, 1: 0.0, 2: 0.0})


def test_a_seed_that_a_method_lacks_does_not_count_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "DRAWS", 400)
    values = {f"m{i}": float(i) for i in range(12)}
    gained = {n: measure.Gain(1e-4, 3, {0: v, 1: v} if v > 5 else {1: v}) for n, v in values.items()}
    found = measure.predict("m", values, gained)
    assert (found.rho, found.low) == (pytest.approx(1.0), pytest.approx(1.0)), "draws without a seed of a method are left out"


def test_a_measure_that_is_mostly_one_value_has_no_interval() -> None:
    gained = {f"m{i}": measure.Gain(1e-4, 3, {0: float(i), 1: i + 0.1}) for i in range(12)}
    found = measure.predict("sign", {f"m{i}": float(max(0, i - 6)) for i in range(12)}, gained)
    assert measure.shown(found) == f"{found.rho:+.2f} (ties)"
    assert math.isnan(found.low)


def test_the_committed_runs_hold_grpo_and_perfect_credit() -> None:
    for variant in measure.VARIANTS:
        gained = measure.gains(list(measure.studied_runs(variant)))
        assert gained["oracle_first_error"].mean > 0
        assert len(gained) >= 5


def test_the_committed_gains_are_those_of_the_committed_runs() -> None:
    page = (measure.HERE / "README.md").read_text(encoding="utf-8")
    for variant in measure.VARIANTS:
        table = measure.gain_table(measure.gains(list(measure.studied_runs(variant))))
        assert table in page, "python reports/lab_training/measure.py"


@pytest.mark.usefixtures("hydra_conf")
def test_the_lab_has_an_estimator_of_each_method() -> None:
    for variant in measure.VARIANTS:
        composed = checked("task=lab", f"+variant={variant}", *measure.SETTINGS)
        assert {*measure.TRAINED.values()} - {measure.BASELINE} <= {*composed.lab.estimators}
