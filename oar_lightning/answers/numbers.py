r"""Reads numbers exactly: decimals, scientific notation, fractions, mixed numbers, and numbers with a word for their size."""

from __future__ import annotations

import re
from fractions import Fraction

_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_SCIENTIFIC = re.compile(
    r"([+-]?)\s*(?:(\d+\.?\d*|\.\d+)\s*(?:\\times|\\cdot|\*|×|·)\s*)?10\s*\^\s*(?:\{\s*([+-]?\d{1,3})\s*\}|(\d))", re.ASCII
)
_FRACTION = re.compile(
    r"([+-]?)\s*(?:\\frac\s*\{([+-]?\d{1,50})\}\s*\{([+-]?\d{1,50})\}|(\d{1,50})\s*/\s*(\d{1,50}))", re.ASCII
)
_MIXED = re.compile(r"([+-]?)\s*(\d{1,50})(?: |\s*\\frac\{)(\d{1,50})(?:/|\}\{)(\d{1,50})\}?", re.ASCII)
_MAX_DIGITS = 100

_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_PARTS = {"half": 2, "halve": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9}
SIZES: dict[str, Fraction] = {
    **{name: Fraction(10**power) for name, power in _POWERS.items()},
    **{name + "th": Fraction(1, 10**power) for name, power in _POWERS.items()},
    **{name: Fraction(1, below) for name, below in (_PARTS | {"tenth": 10}).items()},
    "dozen": Fraction(12),
}
"""What a number is multiplied with by the word after it, in the singular. Not `quarter` (a coin) and `second` (a time)."""


def plain_number(text: str) -> Fraction | None:
    """The exact value of an integer or decimal, with or without a power of ten; else None.

    A comma is no part of it: `canonical` has taken out thousands separators.
    """
    text = text.strip()
    if len(text) > _MAX_DIGITS:
        return None
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if (match := _SCIENTIFIC.fullmatch(text)) is not None:
        return Fraction(match[2] or 1) * Fraction(10) ** int(match[3] or match[4]) * (-1 if match[1] == "-" else 1)
    return None


def plain_fraction(text: str) -> Fraction | None:
    """The exact value of a quotient of two integers; else None."""
    match = _FRACTION.fullmatch(text.strip())
    if match is None:
        return None
    above, below = int(match[2] or match[4]), int(match[3] or match[5])
    return None if below == 0 else Fraction(above, below) * (-1 if match[1] == "-" else 1)


def without_mixed(text: str) -> str:
    r"""`3 1/2` and `3\frac{1}{2}` as `\frac{7}{2}`; any other text unchanged."""
    match = _MIXED.fullmatch(text)
    if match is None or not 0 < int(match[3]) < int(match[4]):
        return text
    whole, above, below = (int(match[i]) for i in (2, 3, 4))
    return f"{match[1].strip('+')}\\frac{{{whole * below + above}}}{{{below}}}"


def without_size(text: str) -> str:
    r"""`2.5 million` as `2500000`, `3 \text{ halves}` as `\frac{3}{2}`; any other text unchanged."""
    match = re.fullmatch(r"(.*?\d)\s*(?:\\(?:text|mathrm|textrm|mbox)\s*\{\s*([A-Za-z]+)\s*\}| ?([A-Za-z]+))", text)
    if match is None or (value := plain_number(match[1])) is None:
        return text
    word = (match[2] or match[3]).lower()
    size = SIZES.get(word) or SIZES.get(word.removesuffix("s"))
    if size is None:
        return text
    value *= size
    if size >= 1 and value.denominator == 1:
        return str(value)
    return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
