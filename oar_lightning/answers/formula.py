"""Compares short formulas by their values: two that differ at a point are different, two that agree at several are equal.

The reader knows arithmetic with variables: numbers, + - * /, fractions, roots, powers, brackets, pi, e, i. Other and
ambiguous formulas are left to computer algebra. Its time is bounded for any text, and it executes nothing.
"""

from __future__ import annotations

import cmath
import math
import re
from fractions import Fraction
from typing import Any, NamedTuple

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3}(?![\d.]))?"
_TOKEN = re.compile(_NUMBER + r"|\\[A-Za-z]+|[A-Za-z+\-*/^(){}\[\]!|]|\s+")
_MAX_DEPTH = 20
_MAX_EXPONENT = 200
_POINTS = 4
_MAX_BITS = 50_000


class Unreadable(ValueError):
    """Not arithmetic, or ambiguous."""


def values(text: str) -> list[complex] | None:
    """The formula's values at a few fixed points (all the same for a constant), or None where it cannot be read."""
    tokens = _tokens(text)
    try:
        return None if tokens is None else [_Reader(tokens, point).whole() for point in range(_POINTS)]
    except (Unreadable, ArithmeticError, ValueError):
        return None


def exact(text: str) -> Fraction | None:
    """The value of a formula of integers and decimals, whole powers included; None for any other."""
    tokens = _tokens(text)
    try:
        return None if tokens is None else _ExactReader(tokens, 0).whole()
    except (Unreadable, ArithmeticError, ValueError):
        return None


def _tokens(text: str) -> list[str] | None:
    if len(text) > 300:
        return None
    tokens = [t for t in _TOKEN.findall(text) if not t.isspace()]
    if sum(map(len, tokens)) != len("".join(text.split())) or re.search(r"\d\s*\\frac|\d\s+\d", text):
        return None  # a mixed number looks like a product
    return None if re.search(r"(?<![\\A-Za-z])[A-Za-z]{3}", text) else tokens  # a word


def is_constant(text: str) -> bool:
    """Whether a formula has no variable: no letter but i, e and those of numbers and commands."""
    return all(token in ("i", "e") or not token.isalpha() for token in _TOKEN.findall(text))


def equal_values(first: list[complex], second: list[complex]) -> bool | None:
    """Whether two formulas are equal by their values; None where rounding could decide."""
    verdicts = {_equal(a, b) for a, b in zip(first, second, strict=True)}
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _equal(a: complex, b: complex) -> bool | None:
    difference, size = abs(a - b), max(abs(a), abs(b))
    if difference > 1e-5 * size:
        return None if 0 < difference < 1e-12 else False  # rounding around zero
    # large integers may differ by one and be the same float
    return True if difference <= 1e-12 * size and size < 1e9 else None


def _at(name: str, point: int) -> float:
    """The value of a variable at a point: irrational, between 0.5 and 2.5, of either sign."""
    size = 0.5 + 2 * math.modf((ord(name) * 0.618033988749895 + point * 0.324717957244746) * math.pi)[0]
    return -size if (point + ord(name)) % 2 and point else size


class _Reader:
    """A recursive descent parser that computes the value, a complex number, while it reads the tokens."""

    def __init__(self, tokens: list[str], point: int) -> None:
        self.tokens = tokens
        self.point = point
        self.position = 0
        self.depth = 0

    def whole(self) -> Any:
        value = self.sum()
        if self.position != len(self.tokens):
            raise Unreadable
        return self._finite(value)

    def sum(self) -> Any:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise Unreadable
        value = self.product()
        while self._peek() in ("+", "-"):
            sign = self._take()
            term = self.product()
            value = value + term if sign == "+" else value - term
        self.depth -= 1
        return value

    def product(self) -> Any:
        sign = 1
        while self._peek() in ("+", "-"):
            sign *= -1 if self._take() == "-" else 1
        value = self.power()
        divided = False
        while True:
            token = self._peek()
            if token in ("*", "\\cdot", "\\times"):
                self._take()
                value *= self.power(signed=True)
            elif token in ("/", "\\div"):
                if divided:  # a / b / c
                    raise Unreadable
                self._take()
                value, divided = value / self.power(signed=True), True
            elif token and (token[0].isalnum() or token in ("(", "\\frac", "\\sqrt", "\\pi", "{")):
                if divided:  # 1/2x
                    raise Unreadable
                value *= self.power()
            else:
                return sign * value

    def power(self, signed: bool = False) -> Any:
        if signed and self._peek() == "-":
            self._take()
            return -self.power()
        base = self.atom()
        if self._peek() == "^":
            self._take()
            if self._peek() == "{":
                exponent = self.group("{", "}")
            else:
                token = self._take()  # TeX: one character
                exponent = self._number(token) if re.fullmatch(r"\d", token) else self._letter(token)
            if self._peek() == "^":
                raise Unreadable
            base = self._raised(base, exponent)
        if self._peek() == "!":
            raise Unreadable
        return self._finite(base)

    def atom(self) -> Any:
        token = self._peek()
        if token == "(":
            return self.group("(", ")")
        if token == "{":
            return self.group("{", "}")
        self._take()
        if re.fullmatch(_NUMBER, token):
            return self._number(token)
        if token == "\\frac":
            above = self.group("{", "}")
            return above / self.group("{", "}")
        return self._root() if token == "\\sqrt" else self._letter(token)

    def group(self, opening: str, closing: str) -> Any:
        if self._take() != opening:
            raise Unreadable
        value = self.sum()
        if self._take() != closing:
            raise Unreadable
        return value

    def _number(self, token: str) -> Any:
        return complex(float(token))

    def _letter(self, token: str) -> Any:
        if token == "\\pi":
            return complex(math.pi)
        if len(token) != 1 or not token.isalpha():
            raise Unreadable
        return {"i": 1j, "e": complex(math.e)}.get(token, complex(_at(token, self.point)))

    def _root(self) -> Any:
        degree = self.group("[", "]") if self._peek() == "[" else 2
        inner = self.group("(", ")") if self._peek() == "(" else self.group("{", "}")
        # an odd root of a negative number is real, its principal value is not
        if inner.imag == 0 and inner.real < 0 and degree != 2:
            raise Unreadable
        inner = complex(inner.real, inner.imag + 0.0)  # -0.0 would choose the other branch
        return cmath.exp(cmath.log(inner) / degree) if inner else 0j

    def _raised(self, base: Any, exponent: Any) -> Any:
        if abs(exponent) > _MAX_EXPONENT:
            raise Unreadable
        return base**exponent

    def _peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        if not token:
            raise Unreadable
        self.position += 1
        return token

    def _finite(self, value: Any) -> Any:
        if not cmath.isfinite(value) or abs(value) > 1e100:
            raise Unreadable
        return value


class _ExactReader(_Reader):
    """Computes with fractions; a variable, a root, pi, e and i are unreadable, as are numbers of too many digits."""

    def _number(self, token: str) -> Fraction:
        return Fraction(token)

    def _letter(self, token: str) -> Fraction:
        raise Unreadable

    def _root(self) -> Fraction:
        raise Unreadable

    def _raised(self, base: Fraction, exponent: Fraction) -> Fraction:
        if exponent.denominator != 1 or abs(exponent) * _bits(base) > _MAX_BITS:
            raise Unreadable
        return base ** int(exponent)

    def _finite(self, value: Fraction) -> Fraction:
        if _bits(value) > _MAX_BITS:
            raise Unreadable
        return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def arithmetic(gold: str, answer: str) -> bool | None:
    """Compare formulas by their values; None where one can be read in several ways or not at all."""
    return same(readable(gold), readable(answer))


class Readable(NamedTuple):
    """A formula, its values and its exact value; each None where it cannot be read so."""

    text: str
    values: list[complex] | None
    exact: Fraction | None


def readable(text: str) -> Readable:
    return Readable(text, values(text), exact(text))


def same(first: Readable, second: Readable) -> bool | None:
    if first.text == second.text:
        return True
    if (equal := equal_exactly(first, second)) is not None:
        return equal
    if first.values is None or second.values is None:
        return None
    if is_constant(first.text) != is_constant(second.text):
        return False  # even where a factor of 0 makes them agree
    return equal_values(first.values, second.values)


def equal_exactly(first: Readable, second: Readable) -> bool | None:
    """Whether two formulas of whole numbers are equal; None for other ones, and for unequal ones of which one has a decimal
    point, for it may be rounded."""
    if first.exact is None or second.exact is None:
        return None
    return True if first.exact == second.exact else None if "." in first.text + second.text else False
