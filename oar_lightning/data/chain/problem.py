"""Problems of the `chain` task: their numbers and words, their question, and the parser of a question."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from oar_lightning.data.generated import is_held_out
from oar_lightning.data.hints import TEMPLATE

NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gia", "Hugo")
ITEMS = ("apples", "books", "coins", "cards", "pens", "shells", "stamps", "nuts")
GAINS = ("finds", "buys", "gets", "wins")
LOSSES = ("loses", "sells", "eats", "drops")
SEPARATOR = ", "
"""Between the numbers of an answer."""


@dataclass(frozen=True)
class Companion:
    """A second person, whose steps alternate with the first person's. `counts`: the question asks for both together."""

    name: str
    start: int
    deltas: tuple[int, ...]
    verbs: tuple[str, ...]
    counts: bool


@dataclass(frozen=True)
class Form:
    """How a solution is written; `told`: the question says so."""

    restate: bool = True
    asides_last: bool = False
    told: bool = False

    @property
    def words(self) -> str:
        return f"{'Repeat' if self.restate else 'Omit'} totals. Asides {'last' if self.asides_last else 'between'}."


@dataclass(frozen=True)
class ChainProblem:
    """The numbers and words of one problem: ``totals[i + 1] = totals[i] + deltas[i]``. `each`: the question asks for the total
    after each step, not after the last one."""

    name: str
    item: str
    start: int
    deltas: tuple[int, ...]
    verbs: tuple[str, ...]
    companion: Companion | None = None
    form: Form = Form()
    each: bool = False

    @property
    def answer(self) -> int | str:
        if self.each:
            return SEPARATOR.join(map(str, list(accumulate(self.deltas, initial=self.start))[1:]))
        other = self.companion
        return self.start + sum(self.deltas) + (other.start + sum(other.deltas) if other is not None and other.counts else 0)

    @property
    def steps(self) -> int:
        return len(self.deltas)

    @property
    def question(self) -> str:
        return TEMPLATE.format(question=self._asked, hint=self.form.words) if self.form.told else self._asked

    @property
    def _asked(self) -> str:
        other = self.companion
        starts = f"{self.name} has {self.start} {self.item}."
        moves = [f"{self.name} {verb} {abs(delta)}." for verb, delta in zip(self.verbs, self.deltas, strict=True)]
        if other is None:
            return f"{starts} {' '.join(moves)} How many {self.item} are left{' each time' * self.each}?"
        theirs = [f"{other.name} {verb} {abs(delta)}." for verb, delta in zip(other.verbs, other.deltas, strict=True)]
        both = " ".join(f"{mine} {their}" for mine, their in zip(moves, theirs, strict=True))
        asked = "are there" if other.counts else f"has {self.name}"
        return f"{starts} {other.name} has {other.start} {self.item}. {both} How many {self.item} {asked}?"

    @property
    def held_out(self) -> bool:
        """Whether this problem belongs to the held-out split: decided by the first person's numbers, not by words."""
        return is_held_out(f"{self.start}:{self.deltas}")


class Account(NamedTuple):
    """One person's numbers in a question."""

    start: int
    deltas: tuple[int, ...]


_MOVE = re.compile(r"([A-Z][a-z]+) ([a-z]+) (\d+)")
_ASKED = re.compile(r"How many [a-z]+ (?:are (left|there)(?: each time)?|has ([A-Z][a-z]+))\?")


def asked_accounts(question: str) -> dict[str, Account] | None:
    """The persons that a question asks for, with their numbers, in order; None for a question of another task.

    The inverse of `ChainProblem.question`.
    """
    starts: dict[str, int] = {}
    deltas: dict[str, list[int]] = {}
    for name, verb, number in _MOVE.findall(question):
        if verb == "has" and name not in starts:
            starts[name], deltas[name] = int(number), []
        elif name in starts and verb in (*GAINS, *LOSSES):
            deltas[name].append(int(number) if verb in GAINS else -int(number))
        else:
            return None
    asked = _ASKED.search(question)
    if asked is None or (asked[2] and asked[2] not in starts):
        return None
    names = [asked[2]] if asked[2] else list(starts)
    return {name: Account(starts[name], tuple(deltas[name])) for name in names} or None
