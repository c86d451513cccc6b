"""The definition of a scorer, and helpers that all scorers use.

A scorer is a callable ``(model, rollouts) -> scores [B S]``. The rows are whole groups, with ``rollouts.advantages``. Scores
are finite and detached, >= 0 unless the scorer is `signed`, and zero outside the region that it covers. They do not depend on
chunk size, padding or the order of groups. The scorer leaves ``param.grad`` and the training mode untouched.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.randomness import generator
from oar_lightning.credit.component import Component, Region, Tools
from oar_lightning.credit.segments import Segmenter
from oar_lightning.objective.metric_sums import MetricSums
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import MathProblem, Rollouts


class Scorer(Component, ABC):
    """Base of the built-in scorers; a plug-in may subclass it or be any callable of the same shape.

    `covers`: the largest region whose tokens it scores. `signed`: whether scores have a sign, for gates that read one.
    `reads_all_rows`: whether it is called with groups without a signal too. `reads_groups`: whether a completion's scores
    depend on the others of its group. `reads_step`: whether they depend on all others of the step. `needs_old`,
    `needs_reference`: whether it reads ``old_logprobs``, ``ref_logprobs``, which a training run alone has. `learns`: whether
    it scores by what it has learnt, which its state holds. `masks_loss`: whether it leaves tokens out of the loss, by
    `left_out`. `added`: whether its scores have their meaning as what is added to the group advantage. `whole`: whether they
    are the token advantages, in which the outcome is counted.
    """

    covers: Region = "reasoning"
    signed = False
    reads_all_rows = False
    reads_groups = False
    reads_step = False
    needs_old = False
    needs_reference = False
    learns = False
    masks_loss = False
    added = False
    whole = False

    # not set in __init__, which a plug-in may replace

    @functools.cached_property
    def metrics(self) -> dict[str, float]:
        """Means over the completions of the last call, logged under ``credit/``."""
        return {}

    @functools.cached_property
    def totals(self) -> MetricSums:
        """Counts of the last call, of which the sum is logged, and seconds, of which the largest is; under their own names."""
        return MetricSums()

    @functools.cached_property
    def left_out(self) -> Bool[Tensor, "B S"] | None:
        """Tokens of the last call's rows that leave the loss."""
        return None

    def measure_anew(self) -> None:
        """Forget what was measured of the last call."""
        self.metrics, self.totals, self.left_out = {}, MetricSums(), None

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

    @property
    def budgets(self) -> tuple[TokenBudget, ...]:
        """The budgets that bound the scorer's passes: its `token_budget`, where it has one."""
        budget = getattr(self, "token_budget", None)
        return (budget,) if isinstance(budget, TokenBudget) else ()

    @property
    def only_in_training(self) -> bool:
        """Whether it compares the policy with what a training run alone has."""
        return self.needs_old or self.needs_reference

    def forecast(self, completions: int, tokens: int) -> str:
        """What a step samples beside so many completions of at most so many tokens, in words; empty for most."""
        return ""

    def check_model(self, model: Any) -> None:
        """Refuse, with a ValueError, a policy that it cannot score: when a run is put together."""

    def check_trainer(self, sharded: bool, precision: str) -> None:
        """Refuse, with a ValueError, a trainer that it cannot work under: one that shards the policy's weights over ranks, or
        has a precision of this name."""

    @property
    def knows_tasks(self) -> bool:
        """Whether there are problems that `check_problem` refuses."""
        return isinstance(segments := getattr(self, "segments", None), Segmenter) and segments.knows_tasks

    def check_problem(self, problem: MathProblem) -> None:
        """Refuse, with a ValueError, a problem of another task than it knows: before long work."""
        if isinstance(segments := getattr(self, "segments", None), Segmenter):
            segments.check_problem(problem)

    def begin(self, model: Any) -> None:
        """Take what it needs of the policy before the first step. All ranks call it."""

    def learn(self, model: Any, rollouts: Rollouts) -> None:
        """Learn from a training step's rollouts, just before they are scored. All ranks call it, each with its whole batch."""

    @abstractmethod
    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]: ...


class FunctionScorer(Scorer):
    """A plain function as a scorer. What it covers is its own affair; its scores are >= 0."""

    covers: Region = "response"

    def __init__(self, function: Callable[[Any, Rollouts], Tensor]) -> None:
        self.function = function

    @property
    def name(self) -> str:
        function = getattr(self.function, "func", self.function)  # of functools.partial
        return str(getattr(function, "__name__", type(function).__name__))

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        return self.function(model, rollouts)


FACTS = (
    *("covers", "signed", "reads_all_rows", "reads_groups", "reads_step"),
    *("needs_old", "needs_reference", "learns", "masks_loss", "added", "whole"),
)
"""What a scorer says of itself."""


class Wrapper(Scorer):
    """Base of scorers that change another one's scores; tools, budgets and state are the inner scorer's."""

    def __init__(self, inner: Scorer, configured: bool = True) -> None:
        """`configured`: whether a config has the inner scorer as ``scorer.inner``."""
        self.inner = inner
        for fact in FACTS:
            setattr(self, fact, getattr(inner, fact))
        for budget in inner.budgets if configured else ():
            budget.key = budget.key.replace("scorer.", "scorer.inner.", 1)

    def measure_anew(self) -> None:
        super().measure_anew()
        self.inner.measure_anew()

    def measured_by_inner(self) -> None:
        """Take over what the inner scorer has measured of its last call."""
        self.metrics, self.totals, self.left_out = dict(self.inner.metrics), self.inner.totals, self.inner.left_out

    @property
    def idle(self) -> Mapping[str, str]:
        return {f"inner.{setting}": why.replace("scorer.", "scorer.inner.") for setting, why in self.inner.idle.items()}

    @property
    def budgets(self) -> tuple[TokenBudget, ...]:
        return self.inner.budgets

    def use(self, tools: Tools) -> None:
        self.inner.use(tools)

    def forecast(self, completions: int, tokens: int) -> str:
        return self.inner.forecast(completions, tokens)

    def check_model(self, model: Any) -> None:
        self.inner.check_model(model)

    def check_trainer(self, sharded: bool, precision: str) -> None:
        self.inner.check_trainer(sharded, precision)

    @property
    def knows_tasks(self) -> bool:
        return self.inner.knows_tasks

    def check_problem(self, problem: MathProblem) -> None:
        self.inner.check_problem(problem)

    def begin(self, model: Any) -> None:
        self.inner.begin(model)

    def learn(self, model: Any, rollouts: Rollouts) -> None:
        self.inner.learn(model, rollouts)

    def looked_at(self) -> AbstractContextManager[None]:
        return self.inner.looked_at()

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


def as_scorer(candidate: Any) -> Scorer:
    """The candidate itself if it is a `Scorer`, else a scorer that wraps the callable.

    Raises:
        ValueError: for what cannot be called.
    """
    if not callable(candidate):
        raise ValueError(
            f"scorer is a {type(candidate).__name__}, not a function (model, rollouts) -> importance; if scorer._target_ is "
            "the function itself, add +scorer._partial_=true: without it the function is called when the config is read"
        )
    return candidate if isinstance(candidate, Scorer) else FunctionScorer(candidate)


def checked_scores(scores: Any, rollouts: Rollouts, region: Bool[Tensor, "B S"], name: str) -> Float[Tensor, "B S"]:
    """A scorer's result, checked for type, shape and gradient, and set to zero outside the region.

    Values that are not usable are no error: the gate leaves such rows at weight 1, and they are counted (see
    `credit.metrics`).

    Raises:
        ValueError: for another thing than a tensor of floating-point numbers, a wrong shape, or a tensor with gradient.
    """
    shape = tuple(rollouts.token_ids.shape)
    if not isinstance(scores, Tensor):
        what = "None" if scores is None else f"a {type(scores).__module__}.{type(scores).__name__}"
        raise ValueError(f"scorer {name} returned {what}; return a torch tensor [B S] = {shape}")
    if scores.shape != shape:
        raise ValueError(f"scorer {name} returned shape {tuple(scores.shape)}; return [B S] = {shape}")
    if not scores.is_floating_point():
        raise ValueError(f"scorer {name} returned a tensor of {scores.dtype}; return floating-point numbers")
    if scores.requires_grad:
        raise ValueError(f"scorer {name} returned a tensor with gradient; return scores.detach()")
    return scores.masked_fill(~region, 0.0)


def scorable_rows(rollouts: Rollouts) -> Int[Tensor, " n"]:
    """Rows with both a reasoning and an answer token."""
    return (rollouts.reasoning_mask.any(1) & rollouts.answer_mask.any(1)).nonzero().flatten()


def distinct_rows(rollouts: Rollouts, rows: Int[Tensor, " n"]) -> tuple[list[int], list[int]]:
    """The distinct completions among `rows`: the place in `rows` where each first occurs, and for each of `rows` the index of
    its completion among the distinct ones.

    Completions are equal where prompt, tokens and regions are. A group often holds one completion several times.
    """
    compared = (rollouts.token_ids, rollouts.attention_mask, rollouts.reasoning_mask, rollouts.answer_mask)
    contents = torch.cat([tensor[rows].to(rollouts.token_ids) for tensor in compared], 1).cpu().numpy()
    keys = [row.tobytes() for row in contents]
    index_of: dict[bytes, int] = {}
    first: list[int] = []
    for place, key in enumerate(keys):
        if key not in index_of:
            index_of[key] = len(first)
            first.append(place)
    return first, [index_of[key] for key in keys]


def row_generator(rollouts: Rollouts, row: int, *parts: object) -> torch.Generator:
    """A generator seeded by the row's own tokens, the step and `parts`, not by the row's place in the batch."""
    tokens = rollouts.token_ids[row][rollouts.attention_mask[row]].tolist()
    return generator(rollouts.step, *parts, *tokens)


def place_rows(values: list[Tensor], mask: Bool[Tensor, "B S"], rows: Int[Tensor, " n"]) -> Float[Tensor, "B S"]:
    """[B S] with ``values[i]`` on the masked tokens of ``rows[i]`` in order, zero elsewhere."""
    out = torch.zeros(mask.shape, dtype=values[0].dtype if values else torch.float32, device=mask.device)
    if values:
        placed = out[rows]
        placed[mask[rows]] = torch.cat(values).to(out.device)
        out[rows] = placed
    return out
