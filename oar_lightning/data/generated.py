"""What the generated tasks share: the split, solutions that know their causal tokens, and the stream of problems."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from oar_lightning.answers.span import gold_answer
from oar_lightning.data.hints import hinted, telling, telling_solution, telling_wrong
from oar_lightning.types import MathProblem

OPENERS = ("So", "Then", "Next", "Now", "Well", "Here")
"""Interchangeable words that begin a line of a solution."""

HELD_OUT_ONE_IN = 8
"""One problem in so many, chosen by a hash of what its task calls its kind, is held out from training."""

TRIES = 1000 * HELD_OUT_ONE_IN
"""Draws after which a split counts as empty."""

HintKind = Literal["answer", "solution", "feedback"]
HINT_KINDS: tuple[HintKind, ...] = ("answer", "solution", "feedback")

HINT_TRIES = 16
"""Solutions drawn for a hint that takes one of a certain answer."""


def is_held_out(kind: str) -> bool:
    """Whether problems of this kind belong to the held-out split."""
    return int.from_bytes(hashlib.sha256(kind.encode()).digest()[:4], "big") % HELD_OUT_ONE_IN == 0


class GeneratedProblem(Protocol):
    """A problem with its split."""

    @property
    def question(self) -> str: ...

    @property
    def answer(self) -> int | str: ...

    @property
    def steps(self) -> int:
        """Operations that the answer takes: the problem's level."""
        ...

    @property
    def held_out(self) -> bool: ...


P = TypeVar("P", bound=GeneratedProblem)


def draw_of_split(draw: Callable[[], P | None], held_out: bool, settings: str) -> P:
    """The first problem drawn that is of the split; None is drawn again.

    Raises:
        ValueError: where the split seems to be empty; names the `settings` that allow so few problems.
    """
    for _ in range(TRIES):
        problem = draw()
        if problem is not None and problem.held_out == held_out:
            return problem
    split = "held out" if held_out else "left for training"
    raise ValueError(f"{settings} allow so few problems that none is {split}; raise one of them")


@dataclass(frozen=True)
class Solution:
    """A worked solution and the character spans ``(start, end)`` of its causal tokens, in order."""

    text: str
    causal_spans: tuple[tuple[int, int], ...]


class SolutionText:
    """Text under construction with the spans of its causal pieces."""

    def __init__(self) -> None:
        self.text = ""
        self.spans: list[tuple[int, int]] = []

    def filler(self, piece: str) -> SolutionText:
        self.text += piece
        return self

    def causal(self, piece: str) -> SolutionText:
        self.spans.append((len(self.text), len(self.text) + len(piece)))
        return self.filler(piece)

    def finish(self) -> Solution:
        return Solution(self.text, tuple(self.spans))


class GeneratedTask(Protocol):
    """A distribution of problems and of worked solutions."""

    @property
    def name(self) -> str: ...

    @property
    def hints(self) -> float:
        """The share of the training problems whose question tells of the answer that their solution reaches."""
        ...

    @property
    def hint(self) -> HintKind | Literal["any"]:
        """How they tell it."""
        ...

    def problem(self, rng: random.Random, held_out: bool) -> Any:
        """Draw a problem of the training or the held-out split."""
        ...

    def solution(self, problem: Any, rng: random.Random) -> Solution:
        """Write a worked solution, which may be flawed."""
        ...


@dataclass(frozen=True)
class GeneratedProblems:
    """A seeded stream of a task's problems with random access: problem `i` depends on (seed, split, i) only."""

    task: GeneratedTask
    split: Literal["train", "held_out"] = "train"
    seed: int = 0
    size: int | None = None
    """Number of problems; None is endless."""

    @property
    def endless(self) -> bool:
        return self.size is None

    def __iter__(self) -> Iterator[MathProblem]:
        return self._from(range(self.size) if self.size is not None else itertools.count())

    def shuffled(self, seed: int, epoch: int, start: int = 0) -> Iterator[MathProblem]:
        """The problems from `start` on. They are drawn at random by the source's own seed; a finite source is permuted, too."""
        if self.size is None:
            return self._from(itertools.count(start))
        order = list(range(self.size))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        return self._from(order[start:])

    def _from(self, indices: Iterable[int]) -> Iterator[MathProblem]:
        return (self[index] for index in indices)

    def __getitem__(self, index: int) -> MathProblem:
        rng = random.Random(f"{self.seed}/{self.split}/{index}")
        problem = self.task.problem(rng, held_out=self.split == "held_out")
        found = MathProblem(
            question=problem.question,
            answer=str(problem.answer),
            solution=self.task.solution(problem, rng).text,
            source=self.task.name,
            level=str(problem.steps),
            id=f"{self.task.name}/{self.split}/{self.seed}/{index}",
        )
        rng = random.Random(f"{self.seed}/{self.split}/{index}/hint")  # the problems are those without hints
        if self.split == "held_out" or rng.random() >= self.task.hints:
            return found
        return hinted(found, self._told(problem, gold_answer(found.solution) or found.answer, rng))

    def _told(self, problem: Any, reached: str, rng: random.Random) -> str:
        """What a question tells of the answer that its demonstration reaches. Where no solution that is drawn serves, it tells
        the answer itself, or nothing of a wrong one."""
        kind = rng.choice(HINT_KINDS) if self.task.hint == "any" else self.task.hint
        if kind == "answer":
            return telling(reached)
        others = [self.task.solution(problem, rng).text for _ in range(HINT_TRIES)]
        if kind == "solution":
            return next((telling_solution(o) for o in others if gold_answer(o) == reached), telling(reached))
        answers = map(gold_answer, others)
        return next((telling_wrong(a) for a in answers if a is not None and a != reached), "")
