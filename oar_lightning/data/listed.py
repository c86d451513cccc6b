"""Problems that are in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from oar_lightning.types import MathProblem


class ListedProblems:
    """A finite list of problems, shuffled anew each epoch.

    Raises:
        ValueError: for an empty list.
    """

    def __init__(self, problems: Sequence[MathProblem]) -> None:
        if not problems:
            raise ValueError("a list of problems needs at least one")
        self.problems = list(problems)

    @property
    def size(self) -> int:
        return len(self.problems)

    def __iter__(self) -> Iterator[MathProblem]:
        return iter(self.problems)

    def shuffled(self, seed: int, epoch: int, start: int = 0) -> Iterator[MathProblem]:
        order = list(range(len(self.problems)))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        return (self.problems[i] for i in order[start:])
