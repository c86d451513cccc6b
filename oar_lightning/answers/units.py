"""Splits a unit of measurement from a number, and gives it one spelling."""

from __future__ import annotations

import re

from oar_lightning.answers.numbers import SIZES

_TEXT = r"\\(?:text|mathrm|textrm|mbox)\s*"
_UNIT = re.compile(rf"(?:{_TEXT}\{{([^{{}}]*)\}}|(?<![\\A-Za-z])([A-Za-z][A-Za-z.\- ]*))\s*(?:\^\{{?(\d)\}}?)?$")
_RATES = (
    (re.compile(rf"{_TEXT}\{{([^{{}}]*)\}}\s*/\s*{_TEXT}\{{([^{{}}]*)\}}$"), r"\\text{\1 per \2}"),
    (re.compile(rf"({_TEXT}\{{[^{{}}/]*[A-Za-z])\s*/\s*([A-Za-z][^{{}}/]*\}})$"), r"\1 per \2"),
    (re.compile(r"(?<=\d) ([A-Za-z]+(?: [A-Za-z]+)*)\s*/\s*([A-Za-z]+)$"), r" \1 per \2"),
    (re.compile(r"(?<=\d)\s*/\s*([A-Za-z]{3,})$"), r" per \1"),
)
"""`km/h`, in and outside of \\text{}, as `km per h`."""
_FUNCTIONS = {"pi", "sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "max", "min", "gcd", "lcm", "mod"}
_OPERATIONS = {"plus", "minus", "times", "over", "divided", "multiplied", "factorial", "negative", "point", "choose", "twice"}
_DIGITS = {"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"}
_SIZES = set(SIZES) | {f"{name}s" for name in SIZES}
_GREEK = {"alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "mu", "sigma", "phi", "omega"}
_NO_UNITS = (
    _FUNCTIONS
    | _OPERATIONS
    | _DIGITS
    | _SIZES
    | _GREEK
    | {"and", "or", "not", "inf", "infinity", "nan", "oo", "no", "yes"}
    | {"incorrect", "wrong", "invalid"}
)
_ALIASES = {
    **dict.fromkeys(("feet", "ft"), "foot"),
    **dict.fromkeys(("inches", "in"), "inch"),
    **{"cm": "centimeter", "mm": "millimeter", "km": "kilometer", "m": "meter", "mi": "mile", "yd": "yard"},
    **{"kg": "kilogram", "g": "gram", "lb": "pound", "lbs": "pound", "oz": "ounce", "ml": "milliliter", "l": "liter"},
    **{"hr": "hour", "hrs": "hour", "h": "hour", "min": "minute", "mins": "minute", "sec": "second", "secs": "second"},
    **{"s": "second", "sq": "square", "pct": "percent", "usd": "dollar", "centimetre": "centimeter", "metre": "meter"},
    **{"mph": "mile per hour", "kph": "kilometer per hour", "kmh": "kilometer per hour"},
    **{"kilometre": "kilometer", "litre": "liter", "people": "person", "children": "child", "men": "man", "women": "woman"},
}
_POWERS = {"square": "2", "cubic": "3", "squared": "2", "cubed": "3"}
_WITHOUT_MEANING = {"unit", "percent", "degree"}
"""Words that may be left out, as their signs (%, °) are."""


def _is_unit_word(word: str, marked: bool, spaced: bool) -> bool:
    """Whether a word can be part of a unit. In \\text{} (`marked`) or after a space (`spaced`) any word can. Elsewhere it must
    be known, for letters right after a number are variables."""
    if word in _ALIASES or word in _POWERS or word in ("of", "per"):
        return marked or len(word) > 1
    return word not in _NO_UNITS and len(word) > 2 and (marked or spaced)


def split_unit(text: str, also: str = "") -> tuple[str, str]:
    """`4 feet` as (`4`, `foot`), `2 million people` as (`2 million`, `person`); without a unit, (text, '').

    `also`: a unit whose sign of one letter, which else is a variable, is understood after a space.
    """
    for pattern, spelling in _RATES:
        rate = pattern.sub(spelling, text)
        if rate != text and (split := split_unit(rate))[1]:
            return split
    match = _UNIT.search(text)
    if match is None or not text[: match.start()].strip():
        return text, ""
    words = (match[1] if match[1] is not None else match[2]).lower().replace(".", "").replace("-", " ").split()
    marked = match[1] is not None
    spaced = text[match.start() - 1] == " " or match[0].startswith(" ")
    power = match[3] or ""
    if len(words) == 1 and spaced and (_ALIASES.get(words[0]) == also != "" or (words[0] == "m" and power in ("2", "3"))):
        marked = True
    size, words = (f" {words[0]}", words[1:]) if len(words) > 1 and words[0] in _SIZES else ("", words)
    if "per" in words:
        marked = marked or all(word in _ALIASES for word in words if word != "per")
    if not words or not all(_is_unit_word(word, marked, spaced) for word in words):
        return text, ""
    stems = []
    for word in words:
        stem = _ALIASES.get(word) or (word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word)
        stem = _ALIASES.get(stem, stem)
        if stem in _POWERS:
            power = _POWERS[stem]
        elif stem not in _WITHOUT_MEANING and stem != "of":
            stems.append(stem)
    if power and not stems and match[3] is None and words[-1] in _POWERS:  # "5 squared" is 25
        return text, ""
    return text[: match.start()].strip() + size, " ".join(stems) + (f"^{power}" if power and stems else "")
