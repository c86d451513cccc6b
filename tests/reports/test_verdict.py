"""The verdict: its rule, its pairing, and that the committed page is that of the committed runs."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from scipy.stats import ttest_1samp
from support.study_scripts import REPORTS

from oar_lightning.reporting.statistics import Interval

FOLDER = REPORTS / "verdict"


@pytest.fixture
def leads(load) -> ModuleType:
    return load("leads")


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 5)


@pytest.mark.parametrize(
    ("unused", "every", "adjusted", "expected"),
    [
        ((1, 3), (1, 2), 0.01, "above"),
        ((-3, -1), (-2, -1), 0.01, "below"),
        ((1, 3), (1, 2), 0.06, "sign of a lead"),
        ((-1, 3), (1, 2), 0.01, "sign of a lead"),
        ((1, 3), (-1, 2), 0.5, "sign of a lead"),
        ((-3, -1), (-2, 1), 0.5, "sign of a deficit"),
        ((-3, -1), (1, 2), 0.01, "not shown"),
        ((-1, 1), (-1, 1), 0.9, "not shown"),
    ],
)
def test_the_rule(
    leads: ModuleType, unused: tuple[float, float], every: tuple[float, float], adjusted: float, expected: str
) -> None:
    one = leads.Lead("m", "t", interval(*unused), interval(*every), 0.0)
    assert leads.verdict(one, adjusted) == expected


def worse(method: str) -> dict[tuple[str, float], dict[int, float]]:
    return {(method, 3e-4): {0: 1.0, 1: 1.0}, (method, 5e-5): {0: 1.0, 1: 1.0}}


BASE = {("grpo", 1e-4): dict.fromkeys(range(5), 50.0), ("grpo", 2e-4): dict.fromkeys(range(5), 40.0)} | worse("grpo")


def test_a_lead_is_of_pairs_at_the_best_rates_of_both(leads: ModuleType) -> None:
    own = {("own", 1e-4): {0: 60.0, 1: 60.0}, ("own", 2e-4): dict(enumerate((61.0, 62.0, 51.0, 49.0, 50.5)))} | worse("own")
    found = leads.lead(BASE | own, "t", "own", "grpo")
    differences = [11.0, 12.0, 1.0, -1.0, 0.5]
    assert found.every.mean == pytest.approx(np.mean(differences))
    assert found.unused.mean == pytest.approx(np.mean(differences[2:]))
    assert found.p == pytest.approx(ttest_1samp(differences, 0).pvalue)


def test_a_method_without_all_its_runs_or_rates_has_no_lead(leads: ModuleType) -> None:
    whole = {("own", 2e-4): dict.fromkeys(range(5), 1.0)}
    assert leads.lead(BASE | whole | worse("own"), "t", "own", "grpo") is not None
    assert leads.lead(BASE | whole, "t", "own", "grpo") is None
    assert leads.lead(BASE | {("own", 2e-4): dict.fromkeys(range(4), 1.0)} | worse("own"), "t", "own", "grpo") is None
    assert leads.lead(BASE, "t", "own", "grpo") is None


def test_the_committed_page_is_that_of_the_committed_runs(load, leads: ModuleType) -> None:
    made = load("measure").page(leads.leads_over_grpo())
    assert made in (REPORTS / "VERDICT.md").read_text(encoding="utf-8"), "python reports/verdict/measure.py"


def test_every_method_of_the_runs_has_a_name(leads: ModuleType) -> None:
    methods = {method for task in leads.families.TASKS for method, _ in leads.results_of(task)}
    assert methods - {leads.families.BASELINE} <= leads.NAMES.keys()
