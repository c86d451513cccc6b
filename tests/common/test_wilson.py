"""Wilson's interval against SciPy's."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from oar_lightning.common.wilson import wilson, wilson_bounds


@pytest.mark.parametrize(("hits", "n"), [(0, 1), (1, 1), (3, 8), (8, 8), (500, 1000)])
def test_it_is_scipys(hits: int, n: int) -> None:
    expected = binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson_bounds(hits / n, n) == pytest.approx((expected.low, expected.high), abs=1e-6)
    middle, half = wilson(hits / n, n)
    assert (middle - half, middle + half) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_a_share_of_all_or_none_reaches_its_end_exactly() -> None:
    assert wilson_bounds(1.0, 7)[1] == 1.0
    assert wilson_bounds(0.0, 7)[0] == 0.0
