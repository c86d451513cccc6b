"""What is known of the tokens that decide an outcome: from a task's rules, from labels in the data, from continuations."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from oar_lightning.answers.numbers import plain_number
from oar_lightning.lab.types import ROUNDING, Studied, Truth
from oar_lightning.types import CausalSpans, MathProblem, Prefix, Rollouts

Ranges = Sequence[tuple[int, int]]
"""Character ranges of a text."""

STEPS, FIRST_ERROR = "model_output_steps", "model_output_solution_first_error_step"
"""Columns of MR-GSM8K (arXiv 2312.17080): the steps of a completion, and the number of the first wrong one, from 1 on."""


class Source(ABC):
    """A source of truth that needs no sampling. `locate` reads a problem and its completion; None: it knows nothing of it."""

    def __call__(self, name: str, studied: Studied) -> Truth:
        """What the source knows of the completions."""
        rollouts = studied.rollouts
        decisive = torch.zeros_like(rollouts.reasoning_mask)
        steps = torch.full_like(rollouts.token_ids, -1)
        known = torch.zeros_like(rollouts.reasoning_mask)
        for row, (problem, text, correct) in enumerate(
            zip(rollouts.problems, rollouts.completions, studied.correct, strict=True)
        ):
            tokens = rollouts.token_spans[row]
            found = self.locate(problem, text, correct)
            if found is None:
                continue
            columns = rollouts.response_mask[row].nonzero().flatten()
            decisive[row, columns] = overlapping(tokens, found[0]).to(decisive.device)
            steps[row, columns] = numbered(tokens, found[1]).to(steps)
            known[row] = rollouts.reasoning_mask[row]
        decisive &= rollouts.reasoning_mask
        known &= decisive.any(1, keepdim=True)
        steps_told = steps if self.of_first_errors else None
        return Truth(name, known, decisive & known, steps=steps_told, whole_steps=self.whole_steps)

    of_first_errors = False
    whole_steps = False

    @abstractmethod
    def locate(self, problem: MathProblem, completion: str, correct: bool | None) -> tuple[Ranges, Ranges] | None:
        """The decisive ranges of a completion, and those of its steps where they matter."""
        ...

    def check(self, problem: MathProblem) -> None:
        """Raise ValueError for a problem of another task."""
        self.locate(problem, "", None)


class Spans(Source):
    """The tokens that a task's own rules call decisive, in right and in wrong completions."""

    def __init__(self, locate: Callable[[MathProblem, str], CausalSpans]) -> None:
        self.rules = locate

    def locate(self, problem: MathProblem, completion: str, correct: bool | None) -> tuple[Ranges, Ranges] | None:
        found = self.rules(problem, completion)
        return (found.spans, ()) if found.exact else None


class FirstError(Source):
    """The token at which a wrong completion went wrong, by a task's own rules; nothing of right completions.

    Args:
        locate: (problem, completion) -> the first error, exact where there is one.
        step_ends: (problem, completion) -> where the steps of a completion end.
    """

    of_first_errors = True

    def __init__(
        self,
        locate: Callable[[MathProblem, str], CausalSpans],
        step_ends: Callable[[MathProblem, str], Sequence[int]],
    ) -> None:
        self.rules = locate
        self.step_ends = step_ends

    def locate(self, problem: MathProblem, completion: str, correct: bool | None) -> tuple[Ranges, Ranges] | None:
        found = self.rules(problem, completion)
        if correct is not False or not found.exact:
            return None
        ends = list(self.step_ends(problem, completion))
        return found.spans, list(zip([0, *ends], ends, strict=False))


class FirstWrongStep(Source):
    """The first wrong step of a recorded completion, as its row states it in the form of MR-GSM8K."""

    of_first_errors = True
    whole_steps = True

    def locate(self, problem: MathProblem, completion: str, correct: bool | None) -> tuple[Ranges, Ranges] | None:
        texts, number = problem.extra.get(STEPS), plain_number(str(problem.extra.get(FIRST_ERROR)))  # may be "N/A", or 3.0
        if not isinstance(texts, list | tuple) or number is None or number not in range(1, len(texts) + 1):
            return None
        steps, at = [], 0
        for text in texts:
            start = completion.find(str(text), at)
            if start < 0:
                return None
            at = start + len(str(text))
            steps.append((start, at))
        return [steps[int(number) - 1]], steps


def overlapping(tokens: Ranges, ranges: Ranges) -> Bool[Tensor, " n"]:
    """The tokens that overlap one of the ranges."""
    return torch.tensor(
        [any(first < end and start < last for start, end in ranges) for first, last in tokens], dtype=torch.bool
    )


def numbered(tokens: Ranges, steps: Ranges) -> Int[Tensor, " n"]:
    """The number of the last step that a token overlaps; -1 for tokens outside of steps."""
    return torch.tensor([max((i for i, (a, b) in enumerate(steps) if x < b and a < y), default=-1) for x, y in tokens])


def around_free(studied: Studied) -> list[Prefix]:
    """The prefixes before and after each free token of completions with a gold answer."""
    judged = torch.tensor([c is not None for c in studied.correct], device=studied.free.device)
    places = (studied.free & judged[:, None]).nonzero().tolist()
    return list(dict.fromkeys(Prefix(row, column + after) for row, column in places for after in (0, 1)))


def monte_carlo(
    studied: Studied, rewards: Mapping[Prefix, NDArray[np.float64]], decisive: float, everywhere: int | None = None
) -> Truth:
    """V after minus V before each free token, V the mean reward of a prefix's continuations; 0 for tokens that are not free.

    Those could hardly have been others: their expected difference is at most 1 - p < 0.02 times the range of rewards. A token
    is decisive where the difference is at least `decisive` in size. Rows are known where all their prefixes were continued. The
    halves are means of every other one of the first `everywhere` continuations, the second one NaN where there is one alone.

    everywhere: how many continuations prefixes have whatever these say; None: all. Further ones are of prefixes whose first
        ones disagree, so that halves of them all would err together: those of equal values have been seen to correlate.
    """
    rollouts: Rollouts = studied.rollouts
    judged = torch.tensor([c is not None for c in studied.correct], device=studied.free.device)
    known = rollouts.reasoning_mask & judged[:, None]
    values, first, second = (torch.zeros(known.shape, dtype=torch.float64) for _ in range(3))
    for row, column in (studied.free & judged[:, None]).nonzero().tolist():
        before, after = rewards.get(Prefix(row, column)), rewards.get(Prefix(row, column + 1))
        if before is None or after is None or not len(before) or not len(after):
            known[row] = False
            continue
        values[row, column] = after.mean() - before.mean()
        after, before = after[:everywhere], before[:everywhere]
        first[row, column] = after[::2].mean() - before[::2].mean()
        second[row, column] = _mean(after[1::2]) - _mean(before[1::2])
    values, first, second = (v.to(known.device).masked_fill(~known, 0.0) for v in (values, first, second))
    return Truth("monte_carlo", known, (values.abs() >= decisive - ROUNDING) & known, values, (first, second))


def _mean(rewards: NDArray[np.float64]) -> float:
    return float(rewards.mean()) if len(rewards) else math.nan
