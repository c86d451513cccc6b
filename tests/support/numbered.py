"""Problems that are numbers, an update plan for them, and what loaders make of both."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from oar_lightning.training.slots import SlotLoader, UpdatePlan
from oar_lightning.types import MathProblem

PLAN = UpdatePlan(problems=3, group_size=2, inner_epochs=2, minibatches=2, microbatches=2)


class Numbers:
    """Problems that are their own index; an epoch's order is a permutation by (seed, epoch)."""

    def __init__(self, size: int | None) -> None:
        self.size = size

    @property
    def endless(self) -> bool:
        return self.size is None

    def __iter__(self) -> Iterator[MathProblem]:
        return map(number, itertools.count() if self.size is None else range(self.size))

    def shuffled(self, seed: int, epoch: int, start: int = 0) -> Iterator[MathProblem]:
        if self.size is None:
            return map(number, itertools.count(start))
        order = list(range(self.size))
        random.Random(100 * seed + epoch).shuffle(order)
        return map(number, order[start:])


def number(index: int) -> MathProblem:
    return MathProblem(f"q{index}", str(index), solution=f"s{index}")


def answers(problems: list[MathProblem] | tuple[MathProblem, ...]) -> list[int]:
    return [int(p.answer) for p in problems]


def slots(loader: SlotLoader, count: int) -> list[tuple[Any, ...]]:
    return [
        (answers(s.problems), s.rollout, s.inner_epoch, s.minibatch, s.microbatch, s.first)
        for s in itertools.islice(loader, count)
    ]
