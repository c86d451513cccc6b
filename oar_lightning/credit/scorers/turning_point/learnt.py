"""What searches teach about completions that are not searched yet: which of them turned, and at which tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from oar_lightning.credit.scorers.turning_point.deviations import Deviation
from oar_lightning.credit.scorers.turning_point.search import Search
from oar_lightning.distributed.ranks import all_gather

PRIOR = 2
"""Made-up deviations of the mean rate, which a token's own are added to."""
ENOUGH_TURNS, ENOUGH_COMPLETIONS = 64, 8
"""Turns, and completions of a kind, that have to be known before any is guessed."""
LIKELY = 0.5
"""The share of a kind's completions that have to have turned for others to be taken to have turned, too."""


@dataclass(frozen=True)
class TurnCounts:
    """Of each key: how many were searched, and how many of them turned."""

    searched: Counter[int] = field(default_factory=Counter)
    turned: Counter[int] = field(default_factory=Counter)

    def __add__(self, other: TurnCounts) -> TurnCounts:
        return TurnCounts(self.searched + other.searched, self.turned + other.turned)


@dataclass(frozen=True)
class Checks:
    """Of completions of searched batches: how many were guessed to have turned, how many have, and of how many the guess was
    the turning point."""

    guessed: float = 0.0
    turned: float = 0.0
    right: float = 0.0

    def __add__(self, other: Checks) -> Checks:
        return Checks(self.guessed + other.guessed, self.turned + other.turned, self.right + other.right)

    def then(self, later: Checks) -> Checks:
        """With those of a later batch, beside which they count half."""
        if not (later.guessed or later.turned):
            return self
        return Checks(self.guessed / 2, self.turned / 2, self.right / 2) + later

    def confirm(self, share: float) -> bool:
        """Whether at least this share of guesses is right, and of completions that turned guessed. True of none."""
        return self.right >= share * max(self.guessed, self.turned)

    @classmethod
    def of(cls, guesses: Mapping[int, Search], searches: Mapping[int, Search], rows: Collection[int]) -> Checks:
        """By rows: guesses, and the searches of completions that turned, of which those of `rows` count."""
        right = sum(row in searches and searches[row].turning_point == guess.turning_point for row, guess in guesses.items())
        return cls(len(guesses), sum(row in rows for row in searches), right)


@dataclass(frozen=True)
class Learnt:
    """`tokens`: deviations, by the token that was the most probable one. `kinds`: completions, by their kind (`kind_of`).
    `checks`: of guesses."""

    tokens: TurnCounts = field(default_factory=TurnCounts)
    kinds: TurnCounts = field(default_factory=TurnCounts)
    checks: Checks = Checks()

    def weights(self, deviations: Sequence[Deviation]) -> list[float]:
        """How likely each deviation of a completion is its turning point, up to a factor: its token's share of deviations that
        turned, times its gap and the mean gap. Where nothing is known of tokens, or gaps are alike, the other counts alone."""
        mean_gap = sum(deviation.gap for deviation in deviations) / len(deviations) or 1.0  # 0: ties, all of them
        searched, turned = self.tokens.searched, self.tokens.turned
        mean = turned.total() / searched.total() if turned else 1.0

        def rate(token: int) -> float:
            return (turned[token] + PRIOR * mean) / (searched[token] + PRIOR)

        return [rate(deviation.likely) * (deviation.gap + mean_gap) for deviation in deviations]

    @property
    def is_enough(self) -> bool:
        return min(self.tokens.turned.total(), self.kinds.searched.total()) >= ENOUGH_TURNS

    def expected(self, kinds: Mapping[int, int]) -> list[int]:
        """The rows of a group, given with their kinds, that are guessed to have turned: those of one side, for right ones and
        wrong ones cannot both differ from the greedy completion."""
        shares = {kind: self._share(kind) for kind in kinds.values()}
        likeliest = max(shares, key=shares.__getitem__, default=None)
        return [row for row, kind in kinds.items() if kind == likeliest and shares[kind] >= LIKELY]

    def _share(self, kind: int) -> float:
        """Of completions that turned; 0 where too few are known."""
        searched = self.kinds.searched[kind]
        return self.kinds.turned[kind] / searched if searched >= ENOUGH_COMPLETIONS else 0.0

    @classmethod
    def of(cls, searches: Mapping[int, Search], kinds: Iterable[Mapping[int, int]], guesses: Mapping[int, Search]) -> Learnt:
        """From the searches of completions that turned, by rows, the kinds of all that were searched, group by group, and what
        would have been guessed."""
        ended = [search for search in searches.values() if not search.is_open]
        tokens = Counter(deviation.likely for search in ended for deviation in search.deviations)
        turns = Counter(search.turning_point.likely for search in ended)
        of_rows = {row: kind for group in kinds for row, kind in group.items()}
        turned = Counter(kind for row, kind in of_rows.items() if row in searches)
        checks = Checks.of(guesses, searches, of_rows)
        return cls(TurnCounts(tokens, turns), TurnCounts(Counter(of_rows.values()), turned), checks)

    def of_all_ranks(self) -> Learnt:
        """The sum of what the ranks have learnt. All ranks have to call it."""
        return sum(all_gather(self), Learnt())

    def __add__(self, other: Learnt) -> Learnt:
        return Learnt(self.tokens + other.tokens, self.kinds + other.kinds, self.checks + other.checks)

    def then(self, later: Learnt) -> Learnt:
        """With what a later batch teaches."""
        return replace(self + later, checks=self.checks.then(later.checks))

    def state_dict(self) -> dict[str, Any]:
        if not self.tokens.searched and not self.kinds.searched:
            return {}
        counts = {"deviated": self.tokens.searched, "turned": self.tokens.turned}
        counts |= {"completions": self.kinds.searched, "completions_turned": self.kinds.turned}
        return {name: dict(counter) for name, counter in counts.items()} | {"checks": asdict(self.checks)}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Learnt:
        names = ("deviated", "turned", "completions", "completions_turned")
        tokens, turns, completions, turned = (Counter[int](state.get(name, {})) for name in names)
        return cls(TurnCounts(tokens, turns), TurnCounts(completions, turned), Checks(**state.get("checks", {})))


def kind_of(advantage: float, group: Sequence[float]) -> int:
    """Whether a completion's advantage is positive, and whether at least half of its group's are: 0 to 3."""
    return 2 * (advantage > 0) + (2 * sum(other > 0 for other in group) >= len(group))
