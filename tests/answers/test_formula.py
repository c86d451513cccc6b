"""Formulas by their values, against Python's own arithmetic."""

from __future__ import annotations

import cmath
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oar_lightning.answers.formula import equal_exactly, equal_values, exact, is_constant, readable, values


def equal(first: str, second: str) -> bool | None:
    a, b = values(first), values(second)
    return None if a is None or b is None else equal_values(a, b)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("2\\sqrt{2}", "\\sqrt{8}", True),
        ("(1+i)^2", "2i", True),
        ("e^{i\\pi}", "-1", True),
        ("\\sqrt[3]{8}", "2", True),
        ("\\sqrt[3]{-8}", "-2", None),
        ("\\sqrt{x^2}", "x", False),
        ("\\sqrt{\\frac{x}{y}}", "\\frac{\\sqrt{x}}{\\sqrt{y}}", False),  # where only y is negative
        ("-x^2", "(-x)^2", False),
        ("x-(y-z)", "x-y+z", True),
        ("x-y-z", "x-(y-z)", False),
        ("3\\cdot -2", "-6", True),
        ("3\\cdot --2", "6", None),
        ("2^{-1}", "0.5", True),
        ("2^10", "1024", None),  # TeX: two to the one, then a zero
        ("1/2x", "x/2", None),
        ("8/4/2", "1", None),
        ("1\\frac{1}{2}", "1.5", None),
        ("0", "0.0000000001", False),
        ("0.333333", "\\frac{1}{3}", None),
        ("1000000001^2", "1000000001^2+1", None),
        ("5!", "120", None),
        ("\\sin x", "\\sin x", None),
        ("|x|", "x", None),
        ("abc", "abc", None),
        ("1/0", "1", None),
        ("9^{9^{9}}", "1", None),
        ("9^9^9", "1", None),
        ("", "1", None),
        ("+", "1", None),
        ("(1", "1", None),
        ("1)", "1", None),
        ("\\frac{1}", "1", None),
        ("1,2", "1,2", None),
    ],
)
def test_cases(first: str, second: str, expected: bool | None) -> None:
    assert equal(first, second) is expected
    assert equal(second, first) is expected


NUMBERS = st.integers(1, 20).map(lambda n: (str(n), str(n)))


def _operations(inner: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        pair.map(lambda p: (f"({p[0][0]}+{p[1][0]})", f"({p[0][1]}+{p[1][1]})")),
        pair.map(lambda p: (f"({p[0][0]}-{p[1][0]})", f"({p[0][1]}-{p[1][1]})")),
        pair.map(lambda p: (f"{p[0][0]} \\cdot {p[1][0]}", f"({p[0][1]})*({p[1][1]})")),
        pair.map(lambda p: (f"\\frac{{{p[0][0]}}}{{{p[1][0]}}}", f"({p[0][1]})/({p[1][1]})")),
        inner.map(lambda p: (f"({p[0]})^2", f"({p[1]})**2")),
        inner.map(lambda p: (f"\\sqrt{{{p[0]}}}", f"({p[1]})**0.5")),
    )


@settings(max_examples=300)
@given(st.recursive(NUMBERS, _operations, max_leaves=6))
def test_arithmetic_is_pythons(pair: tuple[str, str]) -> None:
    """Both spellings of the same expression; Python evaluates its own, built here from digits and operators only."""
    latex, python = pair
    found = values(latex)
    try:
        expected = complex(eval(python, {"__builtins__": {}}))
    except ZeroDivisionError:
        assert found is None
        return
    if found is not None:
        assert found == pytest.approx([expected] * len(found), rel=1e-9, abs=1e-9)
    else:
        assert "\\frac" in latex or abs(expected) > 1e90, "only what looks like a mixed number may be refused"


@pytest.mark.parametrize("piece", ["(", "{", "\\frac{", "9^{", "-", "1+", "x", "\\sqrt[", "9"])
def test_any_length_ends_at_once(piece: str) -> None:
    start = time.process_time()
    assert values(piece * 100_000) is None
    values(piece * (300 // len(piece)))
    assert time.process_time() - start < 0.5


@given(st.text(alphabet="0123456789x+-*/^(){}[]!\\ .", max_size=40))
def test_any_text_has_finite_values_or_none(text: str) -> None:
    found = values(text)
    assert found is None or (len(found) == 4 and all(map(cmath.isfinite, found)))
    if found is not None and is_constant(text):
        assert len(set(found)) == 1, "a constant has one value at all points"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("2^{2008}-2", "2(2^{2007}-1)", True),
        ("1-\\frac{1}{2^{100}}", "1", False),
        ("1/3", "0.333333", None),  # it may be rounded
        ("1/4", "0.25", True),
        ("\\sqrt{4}", "2", None),
        ("x", "x", None),
        ("2^{10000}", "2^{10000}+1", False),
        ("2^{60000}", "2^{60000}+1", None),  # too many digits
        ("2^{1/2}", "2", None),
        ("0^{-1}", "1", None),
    ],
)
def test_equal_exactly(first: str, second: str, expected: bool | None) -> None:
    assert equal_exactly(readable(first), readable(second)) is expected


def test_exact_values_against_fractions() -> None:
    assert exact("\\frac{7}{3}(2-5)^{3}+1.5") == Fraction(7, 3) * -27 + Fraction(3, 2)
    assert exact("-2^{3}\\cdot 3") == -24


@pytest.mark.parametrize(
    "text", ["9^{9^{9^{9}}}", "((2^{200})^{200})^{200}", "\\frac{1}{3}^{50000}", "7^{49999}" * 20, "9e999"]
)
def test_exact_values_take_bounded_time(text: str) -> None:
    start = time.process_time()
    exact(text)
    assert time.process_time() - start < 0.2
