"""Tokens by what a task knows of the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from oar_lightning.types import CausalSpans, MathProblem, Rollouts

Locate = Callable[[MathProblem, str], CausalSpans]


class Located(NamedTuple):
    """Completion tokens that overlap the located spans; and for how many completions these were not exact."""

    tokens: Bool[Tensor, "B S"]
    inexact: int


def located(rollouts: Rollouts, locate: Locate, name: str) -> Located:
    """Ask `locate` about each completion.

    Raises:
        ValueError: for rollouts without texts; says that `name` reads them.
    """
    if not rollouts.token_spans:
        raise ValueError(f"{name} reads the text of completions, and these rollouts have none; use another scorer")
    tokens, inexact = torch.zeros(rollouts.token_ids.shape, dtype=torch.bool), 0
    for row, (problem, text, ranges) in enumerate(
        zip(rollouts.problems, rollouts.completions, rollouts.token_spans, strict=True)
    ):
        found = locate(problem, text)
        inexact += not found.exact
        columns = rollouts.response_mask[row].nonzero().flatten().tolist()
        inside = [any(first < end and start < last for start, end in found.spans) for first, last in ranges]
        # bytes that are not UTF-8 may have changed the text's length, and the tokens' ranges are then wrong
        if ranges and ranges[-1][1] == len(text):
            tokens[row, columns] = torch.tensor(inside)
    return Located(tokens.to(rollouts.token_ids.device), inexact)
