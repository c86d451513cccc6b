"""Inequalities as intervals."""

from __future__ import annotations

import pytest

from oar_lightning.answers.intervals import interval


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 <= x < 5", "[2,5)"),
        ("5 >= t > 2", "(2,5]"),
        ("x<-1", "(-\\infty,-1)"),
        ("-1<=x", "[-1,\\infty)"),
        ("(2, 5]", "(2, 5]"),
        ("2 < x > 5", None),
        ("x!=5", "(-\\infty,5)\\cup(5,\\infty)"),
        ("x!=5,x!=6", None),
        ("-80<=g(x)<=82", "[-80,82]"),
        ("5", None),
        ("(5)", None),
    ],
)
def test_interval(text: str, expected: str | None) -> None:
    assert interval(text) == expected
