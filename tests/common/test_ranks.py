"""Ranks against numbers by hand and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from oar_lightning.common.ranks import mid_ranks, rank_correlation


def test_rank_correlation() -> None:
    def correlation(a: list[float], b: list[float]) -> float:
        return rank_correlation(np.array(a), np.array(b))

    assert correlation([1.0, 2.0, 30.0], [-5.0, 0.0, 0.1]) == pytest.approx(1)
    assert correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1)
    assert correlation([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]) == pytest.approx(0.8)
    # mid-ranks 1.5 1.5 3 against 1 2 3
    assert correlation([1.0, 1.0, 3.0], [1.0, 2.0, 3.0]) == pytest.approx(1.5 / math.sqrt(1.5 * 2))
    assert correlation([1.0, 1.0], [1.0, 2.0]) == 0
    assert correlation([], []) == 0


def test_many_ties_are_ranked_as_by_scipy() -> None:
    for seed, size in enumerate([*[30] * 10, 50_000]):  # of so many values all pairs would not fit into memory
        a, b = np.random.default_rng(seed).integers(0, 4, (2, size)).astype(float)
        assert mid_ranks(a).tolist() == rankdata(a).tolist()
        assert rank_correlation(a, b) == pytest.approx(float(spearmanr(a, b).statistic), abs=1e-6)
