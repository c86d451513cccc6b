"""SHEAR's diagnosis: values by segments and correlations by hand, and the committed table's numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import spearmanr
from support.study_scripts import load_script

measure = load_script("shear")


def test_a_value_is_the_outcome_less_what_later_segments_changed() -> None:
    """Three segments; the values at their ends are 0.5, 0.25 and the outcome, 0."""
    inside = [0, 0] + [1] * 20 + [0]
    gains = [0.0, 0.0] + [0.1] * 8 + [-0.25] * 8 + [-0.25] * 4 + [0.0]
    distances = [9.0, 9.0] + [1.0] * 8 + [2.0] * 4 + [4.0] * 4 + [5.0] * 4 + [9.0]
    scores = {name: {"score": values} for name, values in (("value", gains), ("mmd", distances), ("wasserstein", distances))}
    found = measure.text_of({"problem": 3, "correct": False, "reasoning": inside, "estimators": scores})
    assert found.value == pytest.approx([0.5, 0.25, 0.0])
    assert found.mmd == pytest.approx([1.0, 3.0, 5.0])
    assert found.place == pytest.approx([3.5 / 19, 11.5 / 19, 17.5 / 19])


def text(problem: int, value: list[float], distance: list[float]):
    place = np.linspace(0.05, 0.95, len(value)).tolist()
    return measure.Text(problem, place, value, distance, distance)


TEXTS = [text(0, [0.9, 0.6, 0.1], [0.1, 0.5, 0.4]), text(1, [0.71, 0.4, 0.0], [0.2, 0.3, 0.9])]


def test_correlations_are_spearmans() -> None:
    values, distances = [0.9, 0.6, 0.1, 0.71, 0.4, 0.0], [0.1, 0.5, 0.4, 0.2, 0.3, 0.9]
    assert measure.pooled(TEXTS, "mmd") == pytest.approx(spearmanr(values, distances).statistic)
    changes = spearmanr([-0.3, -0.5, -0.31, -0.4], [0.4, -0.1, 0.1, 0.6]).statistic
    assert measure.of_changes(TEXTS, "mmd") == pytest.approx(changes)
    assert measure.by_place(TEXTS, "mmd") == pytest.approx(-1.0), "means 0.15, 0.4, 0.65 against 0.805, 0.5, 0.05"


def test_a_distance_that_is_place_alone_says_nothing_within_a_place() -> None:
    rng = np.random.default_rng(0)
    drawn = [text(i, (np.array([0.8, 0.5, 0.2]) + rng.normal(0, 0.1, 3)).tolist(), [0.125, 0.25, 0.5]) for i in range(50)]
    assert measure.pooled(drawn, "mmd") < -0.8
    assert np.isnan(measure.within_place(drawn, "mmd")), "nothing varies"


def test_the_committed_correlations_are_those_of_the_committed_texts() -> None:
    """Not the intervals, which take half a minute."""
    page = (measure.HERE / "README.md").read_text(encoding="utf-8")
    texts = [measure.Text(**own) for own in json.loads((measure.HERE / "chain.json").read_text(encoding="utf-8"))["texts"]]
    for distance in measure.DISTANCES:
        for own in measure.MEASURES.values():
            assert f"{own(texts, distance):+.2f} [" in page, "python reports/shear/measure.py"
