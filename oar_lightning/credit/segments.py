"""Completions divided into segments, which share their credit.

A `Segmenter` is called with ``(model, rollouts, mask)`` and returns ``starts [B S]``: True at the first token of each segment.
The first masked token of a completion always begins one, so that every masked token is in exactly one segment.
"""

from __future__ import annotations

import bisect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from oar_lightning.common.ranges import PositiveFraction, PositiveInt, Probability, checked
from oar_lightning.common.shares import count_of
from oar_lightning.credit.predictions import passes, predictions
from oar_lightning.policy.token_budget import TokenBudget, unset_budget
from oar_lightning.types import MathProblem, Rollouts

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<!\s)\s*\n\s*")
"""A run of white space is looked at once, from its beginning: from each of its places it would take quadratic time."""


class Segmenter(ABC):
    """Base of the segmenters. A cut fewer than `shortest` tokens after the last one is dropped (the short segment goes
    on), and so is one with fewer tokens behind it."""

    shortest: Annotated[PositiveInt, "a number of tokens"] = 1

    @property
    def knows_tasks(self) -> bool:
        """Whether there are problems that `check_problem` refuses."""
        return False

    def check_problem(self, problem: MathProblem) -> None:  # noqa: B027 - most divide those of any
        """Refuse, with a ValueError, a problem whose completions it cannot divide: before long work."""

    def __call__(self, model: Any, rollouts: Rollouts, mask: Bool[Tensor, "B S"]) -> Bool[Tensor, "B S"]:
        starts = self.cuts(model, rollouts, mask) & mask
        rank = mask.long().cumsum(1) - 1
        out = mask & (rank == 0)
        if self.shortest <= 1:
            return out | starts
        for row in starts.any(1).nonzero().flatten().tolist():
            last, count = 0, int(mask[row].sum())
            for place in rank[row, starts[row]].tolist():
                if place - last >= self.shortest and count - place >= self.shortest:
                    out[row, (rank[row] == place) & mask[row]] = True
                    last = place
        return out

    def passes(self, rollouts: Rollouts) -> float:
        """The forward passes of a batch that dividing it takes."""
        return 0.0

    @abstractmethod
    def cuts(self, model: Any, rollouts: Rollouts, mask: Bool[Tensor, "B S"]) -> Bool[Tensor, "B S"]:
        """The tokens before which a completion is cut."""
        ...


def reasoning_or_all(rollouts: Rollouts) -> Bool[Tensor, "B S"]:
    """The tokens whose text has steps: the reasoning; without an answer all of the response is one text."""
    whole = ~rollouts.reasoning_mask.any(1, keepdim=True)
    return rollouts.reasoning_mask | (whole & rollouts.response_mask)


def segment_numbers(starts: Bool[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """0, 1, ... for the tokens of a completion's segments; -1 outside the mask."""
    return (starts.long().cumsum(1) - 1).masked_fill(~mask, -1)


@checked("scorer.segments")
@dataclass(frozen=True)
class FixedLength(Segmenter):
    """Segments of `length` tokens; the last may be shorter."""

    length: Annotated[PositiveInt, "a number of tokens"] = 8

    def cuts(self, model: Any, rollouts: Rollouts, mask: Bool[Tensor, "B S"]) -> Bool[Tensor, "B S"]:
        return (mask.long().cumsum(1) - 1) % self.length == 0


@checked("scorer.segments")
@dataclass(frozen=True)
class TextCuts(Segmenter):
    """Cuts at places of the text: a token begins a segment if it is the first that begins at or after one.

    Args:
        locate: (problem, completion) -> positions in the completion's text.
        shortest: see `Segmenter`.
    """

    locate: Callable[[MathProblem, str], Sequence[int]]
    shortest: Annotated[PositiveInt, "a number of tokens"] = 1

    @property
    def knows_tasks(self) -> bool:
        """The package's own rules of its tasks refuse problems of others; a user's are not tried out with an empty text."""
        return getattr(self.locate, "func", self.locate).__module__.startswith("oar_lightning.data.")

    def check_problem(self, problem: MathProblem) -> None:
        if self.knows_tasks:
            self.locate(problem, "")

    def cuts(self, model: Any, rollouts: Rollouts, mask: Bool[Tensor, "B S"]) -> Bool[Tensor, "B S"]:
        if not rollouts.token_spans:
            raise ValueError("scorer.segments reads the text of completions, and these rollouts have none; use fixed_length")
        out = torch.zeros(mask.shape, dtype=torch.bool)
        for row, (problem, text, tokens) in enumerate(
            zip(rollouts.problems, rollouts.completions, rollouts.token_spans, strict=True)
        ):
            columns = rollouts.response_mask[row].nonzero().flatten().tolist()
            begins = [start for start, _ in tokens]
            for place in self.locate(problem, text):
                first = bisect.bisect_left(begins, place)
                if first < len(columns):
                    out[row, columns[first]] = True
        return out.to(mask.device)


@checked("scorer.segments")
@dataclass(frozen=True)
class Sentences(TextCuts):
    """Sentences and lines: cuts after a full stop, question or exclamation mark with a space behind it, and after line ends.

    The space belongs to the next sentence, as it does to that one's first token in most tokenizers; line ends to the line.
    """

    locate: Callable[[MathProblem, str], Sequence[int]] = lambda problem, text: [
        match.start() + match[0].rfind("\n") + 1 for match in _SENTENCE_END.finditer(text)
    ]


class PredictedCuts(Segmenter):
    """Base of segmenters that read `predictions`."""

    def passes(self, rollouts: Rollouts) -> float:
        return passes(rollouts)


@checked("scorer.segments")
@dataclass(frozen=True)
class EntropyCuts(PredictedCuts):
    """Cuts before the tokens whose distributions have the largest entropies: where the completion could have gone otherwise.

    Args:
        share: fraction of a completion's tokens before which it is cut.
        shortest: see `Segmenter`.
    """

    share: Annotated[PositiveFraction, "a fraction of tokens"] = 0.1
    shortest: Annotated[PositiveInt, "a number of tokens"] = 8

    def cuts(self, model: Any, rollouts: Rollouts, mask: Bool[Tensor, "B S"]) -> Bool[Tensor, "B S"]:
        entropy = predictions(model, rollouts, mask, _budget()).entropy.masked_fill(~mask, -torch.inf)
        kept = torch.tensor([max(1, count_of(self.share, n)) for n in mask.sum(1).tolist()], device=mask.device)
        threshold = entropy.sort(1, descending=True).values.gather(1, kept[:, None] - 1)
        return entropy >= threshold


@checked("scorer.segments")
@dataclass(frozen=True)
class LowProbabilityCuts(PredictedCuts):
    """Cuts before every `every`-th token whose probability lies below `threshold` (SPO, arXiv 2505.23564).

    With `every` 1 and `threshold` 1 every token is a segment (but those of probability 1).
    """

    threshold: Probability = 0.9
    every: PositiveInt = 5

    def cuts(self, model: Any, rollouts: Rollouts, mask: Bool[Tensor, "B S"]) -> Bool[Tensor, "B S"]:
        logprobs = predictions(model, rollouts, mask, _budget()).logprobs
        low = mask & (logprobs.exp() < self.threshold)
        return low & (low.long().cumsum(1) % self.every == 0)


@checked("scorer.segments")
@dataclass(frozen=True)
class Refined(Segmenter):
    """The segments of `coarse`, after those shorter than `shortest` were joined, cut again where `fine` cuts and both parts
    have so many tokens. Of `coarse` and `fine` their cuts alone count, not a `shortest` of their own."""

    coarse: Segmenter
    fine: Segmenter
    shortest: Annotated[PositiveInt, "a number of tokens"] = 8

    @property
    def knows_tasks(self) -> bool:
        return self.coarse.knows_tasks or self.fine.knows_tasks

    def check_problem(self, problem: MathProblem) -> None:
        self.coarse.check_problem(problem)
        self.fine.check_problem(problem)

    def passes(self, rollouts: Rollouts) -> float:
        return self.coarse.passes(rollouts) + self.fine.passes(rollouts)

    def cuts(self, model: Any, rollouts: Rollouts, mask: Bool[Tensor, "B S"]) -> Bool[Tensor, "B S"]:
        return self.coarse.cuts(model, rollouts, mask)

    def __call__(self, model: Any, rollouts: Rollouts, mask: Bool[Tensor, "B S"]) -> Bool[Tensor, "B S"]:
        out = super().__call__(model, rollouts, mask)
        fine = self.fine.cuts(model, rollouts, mask) & mask & ~out
        for row in fine.any(1).nonzero().flatten().tolist():
            columns = mask[row].nonzero().flatten()
            bounds = [*out[row, columns].nonzero().flatten().tolist(), len(columns)]
            for place in fine[row, columns].nonzero().flatten().tolist():
                after = bisect.bisect(bounds, place)
                if min(place - bounds[after - 1], bounds[after] - place) >= self.shortest:
                    bounds.insert(after, place)
                    out[row, columns[place]] = True
        return out


def _budget() -> TokenBudget:
    return unset_budget("scorer.segments")
