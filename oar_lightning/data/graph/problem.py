"""Problems of the `graph` task: quantities that are defined by others, their question, and the parser of a question."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from oar_lightning.data.generated import is_held_out

ITEMS = ("apples", "books", "cards", "coins", "cups", "eggs", "keys", "lamps", "nuts", "pens", "rings", "shells")
OPERATORS: Mapping[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class Formula(NamedTuple):
    """A quantity that is computed from two others."""

    left: str
    operator: str
    right: str

    @property
    def operands(self) -> tuple[str, str]:
        return self.left, self.right

    def other(self, operand: str) -> str:
        """The operand that goes with a first one: a step may state the operands of a sum or product in either order."""
        return self.left if operand == self.right and self.operator != "-" else self.right


@dataclass(frozen=True)
class GraphProblem:
    """Quantities in the order of their statements, each given or computed from others, and the one that is asked for."""

    modulus: int
    definitions: dict[str, int | Formula]
    asked: str

    @cached_property
    def formulas(self) -> dict[str, Formula]:
        return {name: defined for name, defined in self.definitions.items() if isinstance(defined, Formula)}

    @cached_property
    def order(self) -> tuple[str, ...]:
        """All quantities, each after those that it is computed from. Raises CycleError where there is no such order."""
        parents = {name: defined.operands if isinstance(defined, Formula) else () for name, defined in self.definitions.items()}
        return tuple(TopologicalSorter(parents).static_order())

    @cached_property
    def needed(self) -> frozenset[str]:
        """The computed quantities that the answer depends on."""
        found = {self.asked}
        for name in reversed(self.order):
            if name in found and name in self.formulas:
                found.update(self.formulas[name].operands)
        return frozenset(found & self.formulas.keys())

    def values(self, stated: Mapping[str, int] | None = None) -> dict[str, int]:
        """All quantities' values, where those in `stated` are what is stated and all else follows faultlessly."""
        values = dict(stated or {})
        for name in self.order:
            if name not in values:
                values[name] = self._value(self.definitions[name], values)
        return values

    def _value(self, defined: int | Formula, values: Mapping[str, int]) -> int:
        return defined if isinstance(defined, int) else self.apply(defined.operator, *(values[o] for o in defined.operands))

    def apply(self, sign: str, left: int, right: int) -> int:
        return OPERATORS[sign](left, right) % self.modulus

    @property
    def answer(self) -> int:
        return self.values()[self.asked]

    @property
    def steps(self) -> int:
        return len(self.needed)

    @property
    def statements(self) -> list[str]:
        """What is told of each quantity."""
        return [
            f"{name}={d}" if isinstance(d, int) else f"{name} is {d.left} {d.operator} {d.right}"
            for name, d in self.definitions.items()
        ]

    @property
    def question(self) -> str:
        return f"Modulo {self.modulus}: {'; '.join(self.statements)}. How many {self.asked} are there?"

    @property
    def structure(self) -> str:
        """What the answer depends on, and by which operators: the same for all names, values and orders of statements.

        Colours are refined (Weisfeiler and Leman): a quantity's is made of its operator, its operands' and its users' colours.
        """
        parts = {name: self.formulas[name].operands for name in self.needed}
        colours = {name: "" for operands in parts.values() for name in operands}
        colours |= {name: self.formulas[name].operator for name in parts}
        users = {name: [user for user in parts if name in parts[user]] for name in colours}
        for _ in colours:
            seen = {
                name: str([colour, *(sorted(colours[n] for n in near) for near in (parts.get(name, ()), users[name]))])
                for name, colour in colours.items()
            }
            numbers = {text: str(i) for i, text in enumerate(sorted(set(seen.values())))}
            colours = {name: numbers[text] for name, text in seen.items()}
        signs = {name: self.formulas[name].operator for name in parts}
        return ";".join(sorted(f"{colours[n]}={signs[n]}{sorted(colours[p] for p in parts[n])}" for n in parts))

    @property
    def held_out(self) -> bool:
        """Whether this problem belongs to the held-out split: decided by its structure alone."""
        return is_held_out(self.structure)


_QUESTION = re.compile(r"Modulo ([0-9]{1,9}): ([^.]*)\. How many ([a-z]+) are there\?")
_STATEMENT = re.compile(r"([a-z]+)(?:=([0-9]{1,9})| is ([a-z]+) ([-+*]) ([a-z]+))")


@lru_cache(maxsize=4096)
def read_question(question: str) -> GraphProblem | None:
    """The problem of a question; None for a question of another task. The inverse of `GraphProblem.question`."""
    read = _QUESTION.fullmatch(question)
    statements = [_STATEMENT.fullmatch(told) for told in read[2].split("; ")] if read else []
    definitions: dict[str, int | Formula] = {}
    for statement in statements:
        if statement is None or statement[1] in definitions:
            return None
        name, given, *formula = statement.groups()
        definitions[name] = int(given) if given else Formula(*formula)
    if read is None or int(read[1]) < 2 or read[3] not in definitions:
        return None
    problem = GraphProblem(int(read[1]), definitions, read[3])
    try:
        return problem if definitions.keys() >= set(problem.order) else None
    except CycleError:
        return None
