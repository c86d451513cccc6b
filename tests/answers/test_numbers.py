"""Numbers are read exactly or not at all."""

from __future__ import annotations

from fractions import Fraction

import pytest

from oar_lightning.answers.numbers import SIZES, plain_fraction, plain_number, without_mixed, without_size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", 18),
        ("-3", -3),
        ("+3", 3),
        ("007", 7),
        (".5", Fraction(1, 2)),
        ("18.0", 18),
        ("0.1", Fraction(1, 10)),
        ("1e5", 100000),
        ("1e-7", Fraction(1, 10**7)),
        ("4.5\\times 10^{33}", 45 * 10**32),
        ("-4.5 \\cdot 10^{-3}", Fraction(-45, 10**4)),
        ("10^9", 10**9),
        ("-10^{2}", -100),
        ("2 \\times 10^12", None),
        ("10^{9999}", None),
        ("1,000", None),
        ("1,00", None),
        ("1_000", None),
        ("1e9999", None),
        ("1/2", None),
        ("", None),
        (".", None),
        ("-", None),
        ("e5", None),
        ("٣", None),
        ("²", None),
        ("nan", None),
        ("inf", None),
        ("1\n2", None),
        ("1" * 101, None),
    ],
)
def test_plain_number(text: str, value: Fraction | int | None) -> None:
    assert plain_number(text) == value


def test_plain_fraction() -> None:
    assert plain_fraction("-\\frac{3}{6}") == Fraction(-1, 2)
    assert plain_fraction("3 / 6") == Fraction(1, 2)
    assert plain_fraction("\\frac{1}{0}") is None
    assert plain_fraction("\\frac{x}{2}") is None


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("3 1/2", "\\frac{7}{2}"),
        ("3\\frac{1}{2}", "\\frac{7}{2}"),
        ("-3 1/2", "-\\frac{7}{2}"),
        ("+3 1/2", "\\frac{7}{2}"),
        ("3 3/2", "3 3/2"),
        ("3 0/2", "3 0/2"),
        ("31/2", "31/2"),
        ("3-1/2", "3-1/2"),
        ("1/2", "1/2"),
        ("x 1/2", "x 1/2"),
    ],
)
def test_without_mixed(text: str, rewritten: str) -> None:
    assert without_mixed(text) == rewritten


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("2.5 million", "2500000"),
        ("2.5\\text{ million}", "2500000"),
        ("2.0001 thousand", "\\frac{20001}{10}"),
        ("3 halves", "\\frac{3}{2}"),
        ("-3 halves", "-\\frac{3}{2}"),
        ("18 hundredths", "\\frac{9}{50}"),
        ("2 dozen", "24"),
        ("3 quarters", "3 quarters"),
        ("3 seconds", "3 seconds"),
        ("million", "million"),
        ("x million", "x million"),
        ("3 million apples", "3 million apples"),
    ],
)
def test_without_size(text: str, rewritten: str) -> None:
    assert without_size(text) == rewritten


def test_each_size_is_its_number() -> None:
    assert {name: float(size) for name, size in SIZES.items() if name.startswith(("hundred", "m", "te"))} == {
        **{"hundred": 100.0, "million": 1e6, "hundredth": 0.01, "millionth": 1e-6, "tenth": 0.1},
    }
