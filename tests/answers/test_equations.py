"""Equations: what they state, as a pair of values, and which state nothing. Whole answers are judged in `test_form`."""

from __future__ import annotations

import pytest

from oar_lightning.answers.equations import ASKED, NAME, equations, named_sides


@pytest.mark.parametrize(
    ("gold", "answer", "outcome"),
    [
        ("18", "x=18", ("18", "18")),
        ("18", "2\\cdot9=18", ("18", "18")),
        ("18", "19=18", False),
        ("18", "100m+n=19", ("18", "19")),
        ("2x+y=6", "6", False),
        ("x+y=6", "6", ("6", "6")),
        ("x=1,x=2", "2,1", ("1,2", "2,1")),
        ("y=2,x=1", "(1,2)", ("(1,2)", "(1,2)")),
        ("1,2,3", "1,2,and 3", ("1,2,3", "1,2,3")),
        ("1,-2", "x_1=1,x_{2}=-2", ("1,-2", "1,-2")),
        ("a_1=1,a_2=2", "a_1=2,a_2=1", None),
        ("18", "3*6=18 apples", ("18", "18 apples")),
        ("18", "3*7=18 apples", False),
        ("10", "\\binom{5}{2}=10", ("10", "\\binom{5}{2}")),
        ("11", "\\binom{5}{2}=10", False),
        ("3 hours", "3 minutes=3 hours", False),
        ("12", "12 feet=12 inches", False),
        ("(1,2)", "x_2=1,x_1=2", False),
        ("0.56=56", "56", True),
        ("0.56=56", "0.56", True),
        ("0.56=56", "0.57", False),
        ("18", "19", None),
    ],
)
def test_what_is_stated(gold: str, answer: str, outcome: object) -> None:
    assert equations(gold, answer) == outcome


@pytest.mark.parametrize("side", ["x", "f(x)", "f(-1)", "(r,\\theta)", "|AB|", "\\angle ABC", "m+n", "f^{-1}(3)", "f'(1)"])
def test_names_of_what_was_asked_for(side: str) -> None:
    assert NAME.fullmatch(side)
    assert ASKED.fullmatch(side)
    assert named_sides(f"18={side}") == named_sides(f"{side}=18") == [side, "18"]


@pytest.mark.parametrize("side", ["100m+n", "m-n", "[ABC]", "AB^2", "P(A \\cap B)", "\\frac{a}{b}"])
def test_further_names_in_an_answer(side: str) -> None:
    assert ASKED.fullmatch(side)
    assert not NAME.fullmatch(side)


@pytest.mark.parametrize("side", ["x^2", "2x", "n(n+1)", "x+1", "\\frac{x}{2}", "2(m+n)"])
def test_a_formula_is_no_name(side: str) -> None:
    assert not ASKED.fullmatch(side)
