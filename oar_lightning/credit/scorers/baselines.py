"""Baselines and controls, which are scorers like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.common.ranges import checked
from oar_lightning.credit.component import Region, region_mask
from oar_lightning.credit.scorers.base import (
    Scorer,
    Wrapper,
    as_scorer,
    place_rows,
    row_generator,
)
from oar_lightning.policy.language_model import evaluating
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.policy.token_budget import PASS_TOKENS, SomeTokens, TokenBudget
from oar_lightning.types import Rollouts


class Uniform(Scorer):
    """The same score everywhere: every weight is 1 and training is plain GRPO, bit for bit."""

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        return torch.zeros(rollouts.token_ids.shape, device=rollouts.token_ids.device)


@checked("scorer")
class Entropy(Scorer):
    """I_t = entropy (nats) of the distribution that token t was drawn from ("80/20" tokens, arXiv 2506.01939)."""

    def __init__(self, token_budget: SomeTokens = PASS_TOKENS, region: Region = "reasoning") -> None:
        self.covers = region
        self.token_budget = TokenBudget("scorer.token_budget", token_budget, PASS_TOKENS)

    @torch.no_grad()
    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        def score(chunk: list[int]) -> dict[int, Tensor]:
            part = rollouts.select(torch.tensor(chunk, device=rollouts.token_ids.device))
            mask = region_mask(part, self.covers)
            states, temperature = part.prediction_states, part.temperature
            found = token_logprobs(model, part.token_ids, part.attention_mask, mask, temperature=temperature, states=states)
            entropy = found[1]
            return {row: entropy[i, mask[i]] for i, row in enumerate(chunk)}

        scores: dict[int, Tensor] = {}
        with evaluating(model):
            for _, chunk_scores in self.token_budget.run_in_chunks(rollouts.attention_mask.sum(1).tolist(), score):
                scores.update(chunk_scores)
        self.metrics = {"forward_equivalents": 1.0 if rollouts.prediction_states is None else 0.0}
        rows = torch.arange(len(rollouts))
        return place_rows([scores[i].clamp(min=0) for i in rows.tolist()], region_mask(rollouts, self.covers), rows)


@checked("scorer")
class Random(Scorer):
    """Scores uniform in (0, 1), which carry no information. Seeded by the completion's own tokens."""

    def __init__(self, seed: int = 0, region: Region = "reasoning") -> None:
        self.covers = region
        self.seed = seed

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        mask = region_mask(rollouts, self.covers)
        counts = mask.sum(1).tolist()
        scores = [torch.rand(n, generator=row_generator(rollouts, i, "random", self.seed)) for i, n in enumerate(counts)]
        return place_rows(scores, mask, torch.arange(len(rollouts)))


@checked("scorer")
class Position(Scorer):
    """Scores that grow (`late`) or fall (`early`) linearly along the reasoning, in (0, 1]."""

    def __init__(self, favour: Literal["late", "early"] = "late", region: Region = "reasoning") -> None:
        self.covers = region
        self.favour = favour

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        mask = region_mask(rollouts, self.covers)
        count = mask.sum(1, keepdim=True).clamp(min=1)
        rank = mask.long().cumsum(1)
        rank = rank if self.favour == "late" else count + 1 - rank
        return (rank / count).masked_fill(~mask, 0.0)


@checked("scorer")
class _Rearranged(Wrapper):
    """A control that rearranges another scorer's scores within each completion, which keeps the weights' distribution. Tokens
    that the other one leaves out of the loss move with their scores."""

    def __init__(self, inner: Callable[[Any, Rollouts], Tensor], seed: int = 0, region: Region = "reasoning") -> None:
        super().__init__(as_scorer(inner))
        self.seed = seed
        if region == "response" and self.inner.covers == "reasoning":
            raise ValueError(
                f"scorer.region=response: {type(self.inner).__name__} scores the tokens before the answer only; use reasoning"
            )
        self.covers = region

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        importance = self.inner(model, rollouts)
        self.measured_by_inner()
        rows = torch.arange(len(rollouts))
        mask = region_mask(rollouts, self.covers)
        left_out = None if self.left_out is None else self.left_out.clone()
        found = []
        for row in rows.tolist():
            scores = importance[row, mask[row]]
            order = torch.randperm(len(scores), generator=row_generator(rollouts, row, "shuffled", self.seed))
            places = self.places(scores, order.to(scores.device))
            found.append(scores[places])
            if left_out is not None:
                left_out[row, mask[row]] = left_out[row, mask[row]][places]
        self.left_out = left_out
        return place_rows(found, mask, rows)

    def places(self, scores: Float[Tensor, " R"], order: Int[Tensor, " R"]) -> Int[Tensor, " R"]:
        """From which of the row's tokens each gets its score; `order` is a random order of them."""
        raise NotImplementedError


@checked("scorer")
class Shuffled(_Rearranged):
    """The inner scorer's scores in random order: as uneven as before, but on other tokens."""

    def places(self, scores: Float[Tensor, " R"], order: Int[Tensor, " R"]) -> Int[Tensor, " R"]:
        return order


class Inverted(_Rearranged):
    """The inner scorer's scores with their ranks reversed: the least important token gets the largest score. Equal scores are
    ranked in random order."""

    def places(self, scores: Float[Tensor, " R"], order: Int[Tensor, " R"]) -> Int[Tensor, " R"]:
        order = order[scores[order].argsort(stable=True)]
        places = torch.empty_like(order)
        places[order] = order.flip(0)
        return places
