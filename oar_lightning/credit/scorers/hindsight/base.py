"""Completions read again after second prompts."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.ranges import checked
from oar_lightning.credit.component import Region, Reprompt, Tools, group_advantages_of, region_mask
from oar_lightning.credit.predictions import predictions
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.credit.teachers import LaggedPolicy, Teacher
from oar_lightning.data.hints import TEMPLATE, hinted, is_template
from oar_lightning.policy.language_model import positions_of
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens, TokenBudget
from oar_lightning.types import Rollouts

LARGEST_EXPONENT = 20.0
"""SERL's code bounds the log-ratio so; a gate's bounds are tighter."""

Hints = Sequence[tuple[int, str]]
"""Rows of rollouts, and what each is told; a row may be told several things."""


class Told(NamedTuple):
    """Log-probabilities of the tokens of the region after each hint, 0 elsewhere, in the columns of the rollouts; and which
    hints could be read: a text that is longer than the model's positions cannot, nor one with tokens that it does not have."""

    logprobs: Float[Tensor, "n S"]
    read: Bool[Tensor, " n"]


def weights(signs: Float[Tensor, " B"], log_ratios: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """exp(sign(A) D)."""
    return (signs[:, None].to(log_ratios.dtype) * log_ratios).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).exp()


@checked("scorer")
class Hindsight(Scorer):
    """Base of scorers that compare a completion's log-probabilities after its prompt and after prompts that tell more.

    Args:
        teacher: who reads the hints; None: `LaggedPolicy()`. What they are compared with is the policy's, always.
        template: how a second prompt's question joins ``{question}`` and ``{hint}``.
        token_budget: padded tokens of one pass, hints included, or `auto`; bounds memory, does not change the numbers.
        region: the tokens that are scored.

    Raises:
        ValueError: for another template.
    """

    def __init__(
        self,
        teacher: Teacher | None = None,
        template: str = TEMPLATE,
        token_budget: SomeTokens = PASS_TOKENS,
        region: Region = "response",
    ) -> None:
        if not is_template(template):
            raise ValueError(
                f"scorer.template must hold {{question}} and {{hint}} and no other field, got {template!r} "
                "(write literal braces doubled: {{ and }})"
            )
        self.covers = region
        self.teacher = teacher or LaggedPolicy()
        self.reads_all_rows = self.teacher.reads_all_rows
        self.template = template
        self.token_budget = TokenBudget("scorer.token_budget", token_budget, PASS_TOKENS)
        self._reprompt: Reprompt | None = None
        self._tokens = 0

    def use(self, tools: Tools) -> None:
        self._reprompt = tools.reprompt
        self.teacher.use(tools)

    def check_trainer(self, sharded: bool, precision: str) -> None:
        self.teacher.check_trainer(sharded)

    @abstractmethod
    def log_ratios(self, model: Any, rollouts: Rollouts, asked: Sequence[int]) -> tuple[Float[Tensor, "B S"], int]:
        """D of the region's tokens, 0 for rows that nothing can be told; and how many of the `asked` rows were read."""
        ...

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        """D itself where the scorer is signed, else exp(sign(A_i) D). Rows of advantage 0 are not read."""
        signs, mask = group_advantages_of(rollouts).sign(), self.mask(rollouts)
        asked = (signs.ne(0) & mask.any(1)).nonzero().flatten().tolist()
        self.teacher.prepare(model, rollouts.step)
        self._tokens = 0
        found, read = self.log_ratios(model, rollouts, asked)
        self.metrics = {
            "forward_equivalents": self._tokens / max(1, int(rollouts.attention_mask.sum())),
            "unread_frac": (len(asked) - read) / max(1, len(rollouts)),
        }
        return (found if self.signed else weights(signs, found)).masked_fill(~mask, 0.0)

    def looked_at(self) -> AbstractContextManager[None]:
        return self.teacher.looked_at()

    def state_dict(self) -> dict[str, Any]:
        return self.teacher.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.teacher.load_state_dict(state)

    def mask(self, rollouts: Rollouts) -> Bool[Tensor, "B S"]:
        return region_mask(rollouts, self.covers)

    @torch.no_grad()
    def untold(self, model: Any, rollouts: Rollouts, rows: Int[Tensor, " n"]) -> Float[Tensor, "n S"]:
        """Log-probabilities of the rows' tokens as they were sampled."""
        part = rollouts.select(rows)
        return self._placed(self._logprobs(model, part), part, rollouts, rows)

    @torch.no_grad()
    def told(self, model: Any, rollouts: Rollouts, hints: Hints) -> Told:
        """Log-probabilities of the hints' rows, each after its problem with its hint."""
        assert self._reprompt is not None, "a run lends its tools before the first step"
        out = torch.zeros(len(hints), rollouts.token_ids.shape[1], device=rollouts.token_ids.device)
        if not hints:
            return Told(out, out.any(1))
        rows = torch.tensor([row for row, _ in hints], dtype=torch.long, device=out.device)
        part = dataclasses.replace(rollouts, prediction_states=None).select(rows)
        questions = [hinted(p, text, self.template).question for p, (_, text) in zip(part.problems, hints, strict=True)]
        part = self._reprompt(part, questions)
        with self.teacher.reading(model) as reader:
            read = _readable(reader, part)
            short = read.nonzero().flatten()
            if len(short):
                kept = part.select(short)
                found = self._placed(self._logprobs(reader, kept), kept, rollouts, rows[short])
                out = out.to(found.dtype)
                out[short] = found
        return Told(out, read)

    def _logprobs(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "n S"]:
        if rollouts.prediction_states is None:
            self._tokens += int(rollouts.attention_mask.sum())
        return predictions(model, rollouts, self.mask(rollouts), self.token_budget).logprobs

    def _placed(
        self, values: Float[Tensor, "n W"], part: Rollouts, rollouts: Rollouts, rows: Int[Tensor, " n"]
    ) -> Float[Tensor, "n S"]:
        """The values of a part's tokens in the columns of the rollouts."""
        mask = self.mask(rollouts)[rows]
        out = values.new_zeros(mask.shape)
        out[mask] = values[self.mask(part)]
        return out


def _readable(model: Any, rollouts: Rollouts) -> Bool[Tensor, " B"]:
    """The rows that are no longer than the model's positions, and hold no token that it does not have."""
    limit = positions_of(model)
    short = rollouts.attention_mask.sum(1) <= (float("inf") if limit is None else limit)
    return short & (rollouts.token_ids.amax(1) < model.get_input_embeddings().weight.shape[0])
