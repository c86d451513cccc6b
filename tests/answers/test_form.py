"""What answers say by their form: the case table, spelling, and properties."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oar_lightning.answers.form import RULES, compare, interval, plain_fraction, plain_number
from oar_lightning.answers.spelling import canonical
from oar_lightning.answers.units import split_unit

# False verdicts of computer algebra on such answers, both ways, and their neighbours. None: a case for algebra.
CASES: list[tuple[str, str, bool | None]] = [
    ("4 feet", "4 inches", False),
    ("4 feet", "4 ft", True),
    ("4\\text{ feet}", "4", True),
    ("18", "18 dollars", True),
    ("18", "\\$18", True),
    ("5\\text{ cm}^2", "5 square centimeters", True),
    ("5\\text{ cm}^2", "5\\text{ cm}", False),
    ("20 \\text{ sq units}", "20", True),
    ("7\\text{ hours}.", "7 hours", True),
    ("4:30", "2:15", False),
    ("4:30", "4:30", True),
    ("3:45\\text{ p.m.}", "3:45 PM", True),
    ("3:45\\text{ p.m.}", "3:45 a.m.", False),
    ("3:45\\text{ p.m.}", "3.75", False),
    ("3:1", "3", False),
    ("\\frac{2}{3} \\approx 0.67", "\\frac{2}{3}", True),
    ("\\frac{2}{3}", "\\frac{3}{4} \\approx 0.67", False),
    ("p.m.", "a.m.", False),
    ("\\text{p.m.}", "\\text{a.m.}", False),
    ("43_5", "43", False),
    ("43", "43_5", False),
    ("43_5", "43_{5}", True),
    ("43_5", "43_6", False),
    ("-37_8", "-37_9", False),
    ("2516_8", "2516_{\\text{8}}", True),
    ("18", "19=18", False),
    ("5", "1=5", False),
    ("18", "x = 18", True),
    ("x = 18", "18", True),
    ("y = 2x + 3", "2x + 3", True),
    ("x = 3", "x = 4", False),
    ("18", "\\ge 18", False),
    ("18", "x > 18", False),
    ("x \\ge 18", "18", False),
    ("[2,5)", "2 \\le x < 5", True),
    ("[2,5)", "2 < x < 5", None),
    ("[2,5)", "x \\in [2,5)", True),
    ("(2,5)", "5 > x > 2", True),
    ("[3,\\infty)", "x \\geq 3", True),
    ("(-\\infty,3)", "3 > x", True),
    ("1e-7", "2e-7", False),
    ("1e-7", "0.0000001", True),
    ("10^{-7}", "2 \\cdot 10^{-7}", False),
    ("1080", "1 080", True),
    ("1080", "1\\,080", True),
    ("18", "18.", True),
    ("18", "**18**", True),
    ("24", "24?", True),
    ("10,000", "10{,}000", True),
    ("\\frac{20000}{3}", "\\frac{20,\\!000}{3}", True),
    ("64", "64\\%", True),
    ("64\\%", "64", True),
    ("50\\%", "50 percent", True),
    ("64", "0.64", False),
    ("90^\\circ", "90", True),
    ("90", "90°", True),
    ("\\textbf{(073)}", "73", True),
    ("073", "73", True),
    ("\\text{(B)}", "B", True),
    ("\\text{(B)}", "\\text{(C)}", False),
    ("\\text{Monday}", "monday", True),
    ("\\text{east}", "west", False),
    ("\\text{Evelyn}", "Evelyn", True),
    ("\\frac12", "1/2", True),
    ("\\dfrac{1}{2}", "\\frac{2}{4}", True),
    ("-\\frac{1}{2}", "\\frac{-1}{2}", True),
    ("\\frac{1}{2}", "0.5", True),
    ("\\frac{1}{3}", "0.333", False),
    ("2\\sqrt{2}", "\\sqrt{8}", True),
    ("2\\sqrt{2}", "2.83", False),
    ("2\\pi", "2 pi", True),
    ("2s", "2", False),
    ("xy", "yx", True),
    ("x^2+2x+1", "(x+1)^2", True),
    ("x^2+2x+1", "(x+1)^3", False),
    ("(1, 2)", "(1,2)", True),
    ("(1, 2)", "(2, 1)", False),
    ("(1, 2)", "[1, 2]", None),
    ("75, 75", "75", False),
    ("1, 2", "2, 1", True),
    ("(1, 2)", "5", False),
    ("\\{1, 2\\}", "\\frac{1}{2}", False),
    ("3", "[3, 4]", False),
    ("\\{5\\}", "5", None),
    ("\\pm 3", "3, -3", None),
    ("\\{1, 2\\}", "\\{2, 1\\}", True),
    ("5!", "120", None),
    ("5", "5xy", False),
    ("3ab", "3", False),
    ("6xy", "6yx", True),
    ("2ab+3cd", "3cd+2ab", True),
    ("5", "5 million", None),
    ("5", "5 squared", None),
    ("40\\text{ min}", "40\\text{ hours}", False),
    ("40\\text{ min}", "40", True),
    ("3", "3\\mathrm{i}", False),
    ("1+2i", "1+2\\mathrm{i}", True),
    ("12", "12\\text{ cups of tea}", True),
    ("(-7,-4]\\cup(-1,2]", "(-1,2]\\cup(-7,-4]", None),
    ("(1,2),(3,4)", "(3,4),(1,2)", None),
    ("(1,2)", "(x,y)=(1,2)", True),
    ("(1,2)", "(x,y)=(2,1)", False),
    ("1, 2", "x=1, x=2", True),
    ("1, 2", "x=2 \\text{ or } x=1", True),
    ("1,1,2", "1,2,2", False),
    ("\\{1,2\\}", "2, 1", True),
    ("\\{1,2\\}", "(1,2)", False),
    ("5", "f(2) = 5", True),
    ("5", "\\angle ABC = 5", True),
    ("\\frac{3}{5}", "\\sin A = \\frac{3}{5}", True),
    ("5", "5 = x", True),
    ("5", "2 + 3 = 5", True),
    ("\\frac{3}{5}", "\\frac{6}{10} = \\frac{3}{5}", True),
    ("\\frac{1}{3}", "0.\\overline{3}", True),
    ("\\frac{1}{6}", "0.1\\bar{6}", True),
    ("\\frac{1}{3}", "0.\\overline{2}", False),
    ("\\infty", "+\\infty", True),
    ("-\\infty", "- \\infty", True),
    ("\\infty", "infinity", True),
    ("\\frac{3}{8}", "\\frac38_7", False),
    ("2\\sqrt{3}", "2√3", True),
    ("\\emptyset", "\\varnothing", True),
    ("5", "\\boldsymbol{5}", True),
    ("\\text{5 minutes}", "5 minutes", True),
    ("125\\%", "125\\textnormal{ miles}", True),
    ("ln 8", "3 ln 2", None),
    ("0", "\\sqrt{2}\\cdot\\sqrt{2}-2", None),
    ("2^{50}", "2^{50}+1", None),
    ("\\begin{pmatrix} 7 \\\\ -13 \\end{pmatrix}", "\\begin{pmatrix} 4 \\\\ -10 \\end{pmatrix}", None),
]


@pytest.mark.parametrize(("gold", "answer", "equal"), CASES)
def test_cases(gold: str, answer: str, equal: bool | None) -> None:
    outcome = compare(canonical(gold), canonical(answer))
    assert (outcome if isinstance(outcome, bool) else None) is equal


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", 18),
        ("-3", -3),
        ("+3", 3),
        ("007", 7),
        ("1,000", 1000),
        ("1,234,567.50", Fraction("1234567.5")),
        (".5", Fraction(1, 2)),
        ("18.0", 18),
        ("0.1", Fraction(1, 10)),
        ("1e5", 100000),
        ("1e-7", Fraction(1, 10**7)),
        ("1,00", None),
        ("1,000,00", None),
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
    ("text", "expected"),
    [
        ("2 <= x < 5", "[2,5)"),
        ("5 >= t > 2", "(2,5]"),
        ("x<-1", "(-\\infty,-1)"),
        ("-1<=x", "[-1,\\infty)"),
        ("(2, 5]", "(2, 5]"),
        ("2 < x > 5", None),
        ("5", None),
        ("(5)", None),
    ],
)
def test_interval(text: str, expected: str | None) -> None:
    assert interval(text) == expected


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("4 feet", "4", "foot"),
        ("12 sq ft", "12", "foot^2"),
        ("3 cubic meters", "3", "meter^3"),
        ("9\\text{ m}", "9", "meter"),
        ("9 m", "9 m", ""),
        ("2 \\pi", "2 \\pi", ""),
        ("2 \\sin x", "2 \\sin x", ""),
        ("\\text{Monday}", "\\text{Monday}", ""),
        ("2^{10}", "2^{10}", ""),
        ("14 \\text{ right triangles}", "14", "right triangle"),
    ],
)
def test_split_unit(text: str, value: str, unit: str) -> None:
    assert split_unit(text) == (value, unit)


PIECES = st.sampled_from(
    [
        *"12,. {}()[]x=<:-+/*?eé日",
        *(
            "\\text{",
            "\\frac",
            "\\le",
            "_5",
            "^2",
            "30",
            "\\%",
            "\\$",
            "feet",
            "a.m.",
            "\\sqrt",
            "\\pi",
            "\\circ",
            "\\,",
            "\\!",
        ),
        *("\\\\", "\ud800", "\x00"),
    ]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=20)


@given(TEXTS)
def test_canonical_is_settled_and_every_answer_equals_itself(text: str) -> None:
    once = canonical(text)
    assert canonical(once) == once
    assert compare(once, once) is True


@settings(max_examples=300)
@given(TEXTS, TEXTS)
def test_rules_end_with_an_outcome_for_any_text(gold: str, answer: str) -> None:
    for rule in RULES:
        outcome = rule(gold, answer)
        assert outcome is None or isinstance(outcome, bool) or (len(outcome) == 2 and all(isinstance(t, str) for t in outcome))
    compare(canonical(gold), canonical(answer))


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_integers_are_equal_as_integers_in_any_spelling(a: int, b: int) -> None:
    for spelling in (
        str(b),
        f"{b:,}",
        f"${b}$",
        f" {b}. ",
        f"x = {b}",
        f"{b}.0",
        f"\\boxed{{{b}}}",
        re.sub(",", r"{,}", f"{b:,}"),
    ):
        assert compare(canonical(str(a)), canonical(spelling)) is (a == b)
