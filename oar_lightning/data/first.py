"""The first problems of a source as a source of their own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from oar_lightning.data.stream import ProblemSource
from oar_lightning.types import MathProblem


class FirstProblems:
    """The first `count` problems of `source`, in a new order each epoch."""

    def __init__(self, source: ProblemSource, count: int) -> None:
        self.problems = list(islice(source, count))

    def __iter__(self) -> Iterator[MathProblem]:
        return iter(self.problems)

    def shuffled(self, seed: int, epoch: int, start: int = 0) -> Iterator[MathProblem]:
        order = random.Random(f"{seed}/{epoch}").sample(self.problems, len(self.problems))
        return iter(order[start:])
