"""Answers that are equations: what a side names, and the value that the other states."""

from __future__ import annotations

import re

from oar_lightning.answers.formula import arithmetic, exact, values
from oar_lightning.answers.spelling import unwrapped
from oar_lightning.answers.structure import Outcome, sides_of, split_top_level
from oar_lightning.answers.units import split_unit

NAME = re.compile(
    r"\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\(-?[A-Za-z0-9, ]+\))?|[A-Za-z ]+|\\text\s*\{[^{}]*\}|\(\\?[A-Za-z]+(?:, ?\\?[A-Za-z]+)+\)"
    r"|\\[a-z]+ ?(?:\{[A-Za-z]+\}|[A-Z]{1,3}|\\?[a-z]+)|[A-Za-z](?:\+[A-Za-z])+"
    r"|(?:\||\\lfloor ?|\\lceil ?)[A-Za-z]+(?:\||\\rfloor|\\rceil)"
    r"|[A-Za-z](?:'{1,2}|\^\{?(?:-1|\\prime)\}?)\([A-Za-z0-9, ]+\)"
)
"""What may stand before an equality sign as the name of what was asked for: `x`, `f(x)`, `f^{-1}(3)`, `m+n`, `|AB|`,
`\\angle ABC`."""
ASKED = re.compile(
    rf"{NAME.pattern}|\d*[A-Za-z](?:[+-]\d*[A-Za-z])+|\[[A-Z]{{3,6}}\]|[A-Z]{{2}}\^\{{?2\}}?"
    r"|P\((?:[A-Za-z |']|\\(?:cap|cup|mid)(?![A-Za-z]))+\)|\\frac\{[A-Za-z]{1,2}\}\{[A-Za-z]{1,2}\}"
)
"""What may stand there in an answer where the gold answer is a value alone: also `100m+n`, `[ABC]`, `AB^2`,
`P(A \\cap B)`. A gold answer `2x+y=6` is a line, which 6 does not state."""
_INDEX = re.compile(r"_(?:\w|\{\w+\})$")
"""Of the names `x_1` and `x_2` of one unknown's solutions."""
_OR = re.compile(r",?\s*(?:\\text\s*\{\s*,?\s*(?:or|and)\s*\}|\b(?:or|and)\b)\s*")


def equations(gold: str, answer: str) -> Outcome:
    """`x = 18` and `2 \\cdot 9 = 18` state 18; `19 = 18` equals no answer; `x = 1, x = 2` is the list 1, 2."""
    plain = [_list_of_values(gold), _list_of_values(answer, indexed=not {"=", "("} & {*gold})]
    if plain != [gold, answer]:
        return plain[0], plain[1]
    sides = [named_sides(text) for text in (gold, answer)]
    counts = [len(split) for split in sides]
    if counts == [1, 1]:
        return None
    if counts[0] > 1 and counts[1] == 1 and all(exact(side) is not None for side in sides[0]):
        return any(arithmetic(side, sides[1][0]) for side in sides[0])  # `0.56 = 56\\%`
    if min(counts) == 1:
        said = [
            (split_unit(side), split_unit(split[-1]))
            for split in sides
            for side in split[:-1]
            if not NAME.fullmatch(side) and not (counts[0] == 1 and ASKED.fullmatch(side))
        ]
        if any(left[1] and right[1] and left[1] != right[1] for left, right in said):
            return False  # `3 minutes = 3 hours`
        outcomes = [arithmetic(left[0], right[0]) for left, right in said]
        if outcomes == [None] and counts[0] == 1 and arithmetic(split_unit(sides[0][-1])[0], said[0][1][0]):
            return sides[0][-1], said[0][0][0]  # `\\binom{5}{2} = 10`, where 10 is right: is what it is said to equal?
        return (sides[0][-1], sides[1][-1]) if all(outcomes) else False
    if counts == [2, 2] and sides[0][0] == sides[1][0]:
        return sides[0][1], sides[1][1]
    return None


def named_sides(text: str) -> list[str]:
    """The sides of an equation, with the name of what was asked for before its value."""
    sides = sides_of(text)
    return sides[::-1] if len(sides) == 2 and NAME.fullmatch(sides[1]) and not NAME.fullmatch(sides[0]) else sides


def _list_of_values(text: str, indexed: bool = False) -> str:
    """`x = 1 or x = 2` and `1 or 2` as `1,2`, with `indexed` also `x_1 = 1, x_2 = 2`; `y = 2, x = 1` as `(1,2)`,
    `\\text{A and B}` as `A,B`; any other text unchanged."""
    letters = split_top_level(_OR.sub(",", unwrapped(text)))
    if len(letters) > 1 and all(re.fullmatch("[A-Z]", letter) for letter in letters):
        return ",".join(letters)
    if not _OR.search(text) and ("=" not in text or "," not in text):
        return text
    parts = split_top_level(_OR.sub(",", text))
    if "=" not in text:
        readable = len(parts) > 1 and all(values(part) is not None for part in parts)
        return ",".join(parts) if readable else text
    sides = [sides_of(part) for part in parts]
    first = sides[0][0]
    if len(sides) < 2 or len(sides[0]) != 2 or not NAME.fullmatch(first):
        return text
    names = [_INDEX.sub("", side[0]) if indexed else side[0] for side in sides if len(side) > 1]
    if all(len(side) <= 2 for side in sides) and len(set(names)) == 1:
        return ",".join(side[-1] for side in sides)
    named = all(len(side) == 2 and re.fullmatch("[A-Za-z]", side[0]) for side in sides)
    if named and "or" not in text and len({name for name, _ in sides}) == len(sides):
        return f"({','.join(value for _, value in sorted(sides))})"
    return text
