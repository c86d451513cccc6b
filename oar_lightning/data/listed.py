"""Problems that are in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from oar_lightning.types import MathProblem


class ListedProblems:
    """A finite list of problems, shuffled anew each epoch.

    Raises:
        ValueError: for an empty list, and an entry that is no problem or has no question or gold answer.
    """

    def __init__(self, problems: Sequence[MathProblem]) -> None:
        if not problems:
            raise ValueError("a list of problems needs at least one")
        for place, problem in enumerate(problems):
            if not isinstance(problem, MathProblem):
                raise ValueError(f"problem {place} of the list is {problem!r}; give MathProblem(question, answer)")
            if not problem.question.strip() or not problem.answer.strip():
                raise ValueError(f"problem {place} of the list has no question or no gold answer, which it needs: {problem}")
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
