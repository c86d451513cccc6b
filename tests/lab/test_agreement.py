"""Agreement against brute force over every order of equal scores, and against SciPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, spearmanr

from oar_lightning.lab import agreement

CASES = [
    ([3, 1, 2, 0, 5], [1, 0, 0, 1, 0]),
    ([1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 1, 0]),
    ([2, 2, 1, 1, 1, 0], [0, 1, 1, 0, 1, 0]),
    ([0.5, -1, 0.5, 0.5, 7, 7], [1, 0, 1, 0, 0, 1]),
    ([4.0], [1]),
]


def orders(scores: list[float]) -> Iterator[tuple[int, ...]]:
    """Every order of the tokens by falling score."""
    for order in itertools.permutations(range(len(scores))):
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order)):
            yield order


def expected(value: Callable[[list[int]], float], scores: list[float], wanted: list[int]) -> float:
    """The mean over all orders of a measure of the wanted marks in order."""
    found = [value([wanted[i] for i in order]) for order in orders(scores)]
    return sum(found) / len(found)


def precision(marks: list[int]) -> float:
    return sum(sum(marks[: i + 1]) / (i + 1) for i, mark in enumerate(marks) if mark) / sum(marks)


def arrays(scores: list[float], wanted: list[int]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    return np.asarray(scores, dtype=float), np.asarray(wanted, dtype=bool)


@pytest.mark.parametrize(("scores", "wanted"), CASES)
def test_ranks_are_expected_over_ties(scores: list[float], wanted: list[int]) -> None:
    s, w = arrays(scores, wanted)
    n, of = len(scores), sum(wanted)
    for share in (0.1, 0.4, 1.0):
        k = math.ceil(share * n)
        hits = expected(lambda marks, k=k: sum(marks[:k]), scores, wanted)
        assert agreement.recall_at(s, w, share) == pytest.approx(hits / of)
        assert agreement.recall_at(s, w, share, normalized=True) == pytest.approx(hits / min(k, of))
    assert agreement.r_precision(s, w) == pytest.approx(expected(lambda marks: sum(marks[:of]) / of, scores, wanted))
    assert agreement.hit_at_1(s, w) == pytest.approx(expected(lambda marks: marks[0], scores, wanted))
    assert agreement.reciprocal_rank(s, w) == pytest.approx(expected(lambda marks: 1 / (marks.index(1) + 1), scores, wanted))
    assert agreement.average_precision(s, w) == pytest.approx(expected(precision, scores, wanted))
    if of < n:
        area = mannwhitneyu(s[w], s[~w]).statistic / (of * (n - of))
        assert agreement.auroc(s, w) == pytest.approx(area)


def test_a_constant_scorer_scores_chance() -> None:
    """Chance: the mean of random scores."""
    rng = np.random.default_rng(0)
    wanted = np.arange(20) < 5
    measures = (
        agreement.auroc,
        agreement.average_precision,
        agreement.recall_at,
        agreement.r_precision,
        agreement.hit_at_1,
        agreement.reciprocal_rank,
    )
    for measure in measures:
        random = [measure(rng.random(20), wanted) for _ in range(800)]
        assert measure(np.zeros(20), wanted) == pytest.approx(np.mean(random), abs=4 * np.std(random) / 800**0.5)
    assert agreement.auroc(np.zeros(20), wanted) == 0.5
    assert agreement.recall_at(np.zeros(20), wanted) == pytest.approx(0.1)
    assert agreement.spearman(np.zeros(20), rng.random(20)) == 0.0
    assert agreement.sign_agreement(np.zeros(20), rng.normal(size=20)) == 0.5


def test_correlation_is_scipys() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        a, b = rng.integers(0, 4, 9).astype(float), rng.integers(0, 4, 9).astype(float)
        assert agreement.spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)


def test_signs() -> None:
    values = np.array([0.5, -0.5, 0.0, 0.2])
    assert agreement.sign_agreement(np.array([1.0, -2.0, 9.0, 0.0]), values) == pytest.approx(2.5 / 3)
    assert agreement.sign_agreement(-values, values) == 0.0


def test_what_is_not_defined_is_nan() -> None:
    scores, none = np.array([1.0, 2.0]), np.zeros(2, dtype=bool)
    measures = (
        agreement.auroc,
        agreement.average_precision,
        agreement.recall_at,
        agreement.r_precision,
        agreement.hit_at_1,
        agreement.reciprocal_rank,
    )
    assert all(math.isnan(measure(scores, none)) for measure in measures)
    assert math.isnan(agreement.auroc(scores, ~none))
    assert math.isnan(agreement.spearman(scores, np.ones(2)))
    assert math.isnan(agreement.spearman(scores[:1], scores[:1]))
    assert math.isnan(agreement.sign_agreement(scores, np.zeros(2)))
    assert math.isnan(agreement.auroc(scores[:0], none[:0]))
