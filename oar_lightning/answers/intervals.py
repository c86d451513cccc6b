"""Inequalities in one variable as intervals, and several of them as their union."""

from __future__ import annotations

import re

_ONE_OF = re.compile(r"\s*(?:\\text\s*\{\s*or\s*\}|\bor\b)\s*")
INEQUALITY = re.compile(r"<=|>=|!=|<|>|\\not(?:in)?(?![A-Za-z])")
MEMBER = re.compile(r"[A-Za-z]\s*\\in(?![A-Za-z])\s*")
_BETWEEN = re.compile(r"([^<>=!]+)(<=?|>=?)\s*[A-Za-z](?:\([A-Za-z]\))?\s*(<=?|>=?)([^<>=!]+)")
_ABOVE = re.compile(r"[A-Za-z]\s*(<=?|>=?)([^<>=!]+)")
_BELOW = re.compile(r"([^<>=!]+)(<=?|>=?)\s*[A-Za-z]")
_FLIP = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def interval(text: str) -> str | None:
    """`2 <= x < 5` as `[2,5)`; an interval unchanged; None for any other text."""
    if both := _BETWEEN.fullmatch(text):
        low, first, second, high = both[1].strip(), both[2], both[3], both[4].strip()
        if first[0] != second[0]:
            return None
        if first[0] == ">":
            low, first, second, high = high, _FLIP[second], _FLIP[first], low
        return f"{'[' if first == '<=' else '('}{low},{high}{']' if second == '<=' else ')'}"
    if other := re.fullmatch(r"[A-Za-z]\s*!=([^<>=!,]+)", text):
        return f"(-\\infty,{other[1].strip()})\\cup({other[1].strip()},\\infty)"
    sign, bound = "", ""
    if above := _ABOVE.fullmatch(text):
        sign, bound = above[1], above[2].strip()
    elif below := _BELOW.fullmatch(text):
        sign, bound = _FLIP[below[2]], below[1].strip()
    if sign:
        closed = "=" in sign
        if sign[0] == "<":
            return f"(-\\infty,{bound}{']' if closed else ')'}"
        return f"{'[' if closed else '('}{bound},\\infty)"
    return text if text and text[0] in "([" and text[-1] in ")]" and "," in text else None


def union(text: str) -> str | None:
    """`x < 2 or x >= 5` as the union of both intervals; else as `interval`."""
    parts = [interval(part) for part in _ONE_OF.split(text)]
    return "\\cup".join(part for part in parts if part) if all(parts) else None
