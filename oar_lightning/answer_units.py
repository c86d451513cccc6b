"""Units of measurement behind a number, in one spelling."""

from __future__ import annotations

import re

_UNIT = re.compile(
    r"(?<![\\A-Za-z])(?:\\(?:text|mathrm|textrm|mbox)\s*\{([^{}]*)\}|([A-Za-z][A-Za-z.\- ]*))\s*(?:\^\{?([23])\}?)?$"
)
_FUNCTIONS = {"pi", "sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "max", "min", "gcd", "lcm", "mod"}
_NO_UNITS = _FUNCTIONS | {"and", "or", "inf", "infinity", "nan", "oo", "no", "yes"}
_ALIASES = {
    **dict.fromkeys(("feet", "ft"), "foot"),
    **dict.fromkeys(("inches", "in"), "inch"),
    **{"cm": "centimeter", "mm": "millimeter", "km": "kilometer", "m": "meter", "mi": "mile", "yd": "yard"},
    **{"kg": "kilogram", "g": "gram", "lb": "pound", "lbs": "pound", "oz": "ounce", "ml": "milliliter", "l": "liter"},
    **{"hr": "hour", "hrs": "hour", "h": "hour", "min": "minute", "mins": "minute", "sec": "second", "secs": "second"},
    **{"s": "second", "sq": "square", "pct": "percent", "usd": "dollar", "centimetre": "centimeter", "metre": "meter"},
    **{"kilometre": "kilometer", "litre": "liter", "people": "person", "children": "child", "men": "man", "women": "woman"},
}
_POWERS = {"square": "2", "cubic": "3", "squared": "2", "cubed": "3"}
_WITHOUT_MEANING = {"unit", "percent", "degree"}
"""Words that may be left out: their signs are."""


def split_unit(text: str) -> tuple[str, str]:
    """`4 feet` as (`4`, `foot`); without a unit, (text, '')."""
    match = _UNIT.search(text)
    if match is None or not text[: match.start()].strip():
        return text, ""
    words = (match[1] if match[1] is not None else match[2]).lower().replace(".", "").replace("-", " ").split()
    marked = match[1] is not None  # \text{m} is a unit, a bare m may be a variable
    if not words or any(w in _NO_UNITS or (len(w) < 2 and not marked) for w in words):
        return text, ""
    power = match[3] or ""
    stems = []
    for word in words:
        stem = _ALIASES.get(word) or (word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word)
        stem = _ALIASES.get(stem, stem)
        if stem in _POWERS:
            power = _POWERS[stem]
        elif stem not in _WITHOUT_MEANING and stem != "of":
            stems.append(stem)
    return text[: match.start()].strip(), " ".join(stems) + (f"^{power}" if power and stems else "")
