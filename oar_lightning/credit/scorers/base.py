"""What a scorer is, and the helpers that all of them share.

A scorer is a callable ``(model, rollouts) -> importance [B S]``: finite, >= 0, zero outside ``reasoning_mask``, detached; it
leaves ``param.grad`` and the training mode untouched and does not depend on chunk size, padding or row order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.randomness import generator
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Rollouts


class Scorer(ABC):
    """Base of the built-in scorers; a plug-in may subclass it or be any callable of the same shape."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        """Diagnostics of the last call, logged under ``credit/``."""

    @property
    def budgets(self) -> tuple[TokenBudget, ...]:
        """What bounds the scorer's passes: its `token_budget`, where it has one."""
        budget = getattr(self, "token_budget", None)
        return (budget,) if isinstance(budget, TokenBudget) else ()

    @abstractmethod
    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]: ...


class FunctionScorer(Scorer):
    """A plain function as a scorer."""

    def __init__(self, function: Callable[[Any, Rollouts], Tensor]) -> None:
        super().__init__()
        self.function = function

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        return self.function(model, rollouts)


def as_scorer(candidate: Any) -> Scorer:
    """A scorer as it is, any other callable wrapped as one."""
    return candidate if isinstance(candidate, Scorer) else FunctionScorer(candidate)


def checked_importance(importance: Tensor, rollouts: Rollouts, name: str) -> Float[Tensor, "B S"]:
    """Hold a scorer to its contract.

    Raises:
        ValueError: for a wrong shape or a tensor that carries gradient. (Values that are not finite are not an error: the
            gate leaves such rows at weight 1 and they are counted.)
    """
    if importance.shape != rollouts.token_ids.shape:
        raise ValueError(
            f"scorer {name} returned shape {tuple(importance.shape)}; expected [B S] = {tuple(rollouts.token_ids.shape)}"
        )
    if importance.requires_grad:
        raise ValueError(f"scorer {name} returned a tensor with gradient; detach it")
    return importance.masked_fill(~rollouts.reasoning_mask, 0.0)


def scorable_rows(rollouts: Rollouts) -> Int[Tensor, " n"]:
    """Rows with both a reasoning and an answer token."""
    return (rollouts.reasoning_mask.any(1) & rollouts.answer_mask.any(1)).nonzero().flatten()


def distinct_rows(rollouts: Rollouts, rows: Int[Tensor, " n"]) -> tuple[list[int], list[int]]:
    """Where in `rows` each different completion is first found, and for each of `rows` the number of its equal among those.

    Completions are equal where prompt, tokens and regions are: a group often holds one several times.
    """
    parts = (rollouts.token_ids, rollouts.attention_mask, rollouts.reasoning_mask, rollouts.answer_mask)
    columns = torch.cat([part[rows].to(rollouts.token_ids) for part in parts], 1).cpu().numpy()
    numbers: dict[bytes, int] = {}
    first: list[int] = []
    for i, key in enumerate(row.tobytes() for row in columns):
        if numbers.setdefault(key, len(first)) == len(first):
            first.append(i)
    return first, [numbers[row.tobytes()] for row in columns]


def row_generator(rollouts: Rollouts, row: int, *parts: object) -> torch.Generator:
    """A generator seeded by the row's own tokens (not its place in the batch), the step and `parts`."""
    tokens = rollouts.token_ids[row][rollouts.attention_mask[row]].tolist()
    return generator(rollouts.step, *parts, *tokens)


def place_rows(values: list[Tensor], mask: Bool[Tensor, "B S"], rows: Int[Tensor, " n"]) -> Float[Tensor, "B S"]:
    """[B S] holding ``values[i]`` on the masked tokens of ``rows[i]`` in order, zero elsewhere."""
    out = torch.zeros(mask.shape, dtype=values[0].dtype if values else torch.float32, device=mask.device)
    for row, value in zip(rows.tolist(), values, strict=True):
        out[row, mask[row]] = value.to(out.device)
    return out
