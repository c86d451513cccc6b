"""A reading of `graph` questions and completions of its own, by text and recursion alone."""

from __future__ import annotations

import re

STEP = re.compile(r"(\w+) is ([a-z]+) ([-+*]) ([a-z]+); ([a-z]+)=(\d); ([a-z]+)=(\d); ([a-z]+)=(\d)")
"""Name, left, sign, right, then three names with their values: the operands' and the step's own."""


def statements(question: str) -> tuple[int, dict[str, str], str]:
    """Modulus, quantity -> number or Python expression, and what is asked for."""
    modulus, told, asked = re.fullmatch(r"Modulo (\d): (.*)\. How many (\w+) are there\?", question).groups()  # type: ignore[union-attr]
    found = {}
    for statement in told.split("; "):
        name, told_of_it = re.split(" is |=", statement)
        found[name] = told_of_it
    return int(modulus), found, asked


def value(question: str, name: str | None = None, stated: dict[str, int] | None = None) -> int:
    """A quantity's value (default: of the one asked for), where some have the values that are stated."""
    modulus, told, asked = statements(question)
    name = asked if name is None else name
    if stated and name in stated:
        return stated[name]
    operands = re.findall(r"[a-z]+", told[name])
    return eval(told[name], {o: value(question, o, stated) for o in operands}) % modulus  # type: ignore[no-any-return]


def ancestors(question: str, name: str) -> set[str]:
    """The computed quantities that a quantity depends on, itself included."""
    operands = re.findall(r"[a-z]+", statements(question)[1][name])
    return {name}.union(*(ancestors(question, o) for o in operands)) if operands else set()
