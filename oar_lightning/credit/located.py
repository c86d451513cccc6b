"""Tokens by what a task knows of the text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from oar_lightning.types import CausalSpans, MathProblem, Rollouts

Locate = Callable[[MathProblem, str], CausalSpans]


class Located(NamedTuple):
    """Completion tokens that overlap the located spans; what of each of them lies in a span, completion by completion; and for
    how many completions the spans were not exact."""

    tokens: Bool[Tensor, "B S"]
    texts: list[list[str]]
    inexact: int


def located(rollouts: Rollouts, locate: Locate, name: str) -> Located:
    """Ask `locate` about each completion.

    Raises:
        ValueError: for rollouts without texts; says that `name` reads them.
    """
    if not rollouts.token_spans:
        raise ValueError(f"{name} reads the text of completions, and these rollouts have none; use another scorer")
    tokens, texts, inexact = torch.zeros(rollouts.token_ids.shape, dtype=torch.bool), [], 0
    for row, (problem, text, ranges) in enumerate(
        zip(rollouts.problems, rollouts.completions, rollouts.token_spans, strict=True)
    ):
        found = locate(problem, text)
        inexact += not found.exact
        inside = list(overlaps(found.spans, ranges))
        tokens[row, rollouts.response_mask[row].cpu()] = torch.tensor([bool(parts) for parts in inside], dtype=torch.bool)
        texts.append([marked(text, parts) for parts in inside if parts])
    return Located(tokens.to(rollouts.token_ids.device), texts, inexact)


class Part(NamedTuple):
    """What of a token lies in a span: characters, and whether the span begins with them."""

    start: int
    end: int
    begins: bool


def overlaps(spans: Sequence[tuple[int, int]], tokens: Sequence[tuple[int, int]]) -> Iterator[list[Part]]:
    """The parts of each token that lie in a span; spans that overlap are one. `tokens` are in order of the text.

    Its time grows with the number of both, but for sorting the spans.
    """
    apart: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if apart and start < apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        else:
            apart.append((start, end))
    first = 0  # of the spans that do not end before the token
    for begin, end in tokens:
        while first < len(apart) and apart[first][1] <= begin:
            first += 1
        parts = []
        for start, stop in itertools.islice(apart, first, None):
            if start >= end:
                break
            if (first_char := max(start, begin)) < (after := min(stop, end)):  # one of both may have no characters
                parts.append(Part(first_char, after, start >= begin))
        yield parts


def marked(text: str, parts: Sequence[Part]) -> str:
    """The text of a token's parts, with a blank where a span begins."""
    return "".join(" " * part.begins + text[part.start : part.end] for part in parts)
