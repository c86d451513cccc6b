"""What scorers by counterfactual passes have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import Probability, Rule
from oar_lightning.credit.freedom import Freedom, Mode
from oar_lightning.credit.scorers.base import Scorer, distinct_rows, place_rows, scorable_rows
from oar_lightning.credit.scorers.oar_p.counterfactual import Counterfactuals
from oar_lightning.credit.scorers.oar_p.fills import FILLS, FillName
from oar_lightning.credit.scorers.oar_p.texts import Texts, texts_until_answer
from oar_lightning.credit.scorers.probes import Probe
from oar_lightning.policy.decoder import choose_decoder
from oar_lightning.policy.language_model import can_share_prefixes, scoring_mode
from oar_lightning.policy.token_budget import SomeTokens, TokenBudget
from oar_lightning.types import Rollouts

TOKENS = 2048
"""The start of `auto`, unless a memory plan gives another."""


ONE_FILL = Rule(
    lambda fill, fill_token_id: fill == "pad" or fill_token_id is None,
    "scorer.fill_token_id={fill_token_id} is only for scorer.fill=pad, not {fill}; leave one out",
)


def check_fill_token(model: Any, fill_token_id: int | None) -> None:
    """Raises ValueError for a number that is no token of the policy."""
    count = getattr(model.get_input_embeddings(), "num_embeddings", None)
    if fill_token_id is not None and (fill_token_id < 0 or (count is not None and fill_token_id >= count)):
        last = "" if count is None else f" to {count - 1}"
        raise ValueError(
            f"scorer.fill_token_id={fill_token_id} is no token of the policy, whose ids are 0{last}; null takes the pad token"
        )


class CounterfactualScorer(Scorer):
    """Base of scorers that replace tokens and run the texts again; subclasses are dataclasses with these fields.

    Each distinct completion with reasoning and an answer is scored once.
    """

    token_budget: TokenBudget | SomeTokens
    fill: FillName
    fill_token_id: int | None
    seed: int
    share_prefixes: bool
    freedom: Mode
    free_below: Probability

    def __post_init__(self) -> None:
        if not isinstance(self.token_budget, TokenBudget):
            self.token_budget = TokenBudget("scorer.token_budget", self.token_budget, TOKENS)

    @property
    def idle(self) -> Mapping[str, str]:
        return Freedom(self.freedom, self.free_below).idle

    def check_model(self, model: Any) -> None:
        check_fill_token(model, self.fill_token_id)

    @property
    def pass_budget(self) -> TokenBudget:
        assert isinstance(self.token_budget, TokenBudget)
        return self.token_budget

    @abstractmethod
    def probe_at(self, step: int) -> Probe:
        """The outcome that is read at a rollout step."""
        ...

    @abstractmethod
    def score(self, counterfactuals: Counterfactuals, texts: Texts) -> tuple[Float[Tensor, " n"], int]:
        """One score for each reasoning token, text by text, and the padded tokens that went through the model."""
        ...

    def free(self, model: Any, rollouts: Rollouts, scores: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        """The scores after `freedom`."""
        scores, passes = Freedom(self.freedom, self.free_below)(model, rollouts, scores, self.pass_budget)
        self.metrics["forward_equivalents"] += passes
        return scores

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        return self.free(model, rollouts, self.influences(model, rollouts))

    @torch.no_grad()
    def influences(self, model: Any, rollouts: Rollouts, starts: Bool[Tensor, "B S"] | None = None) -> Float[Tensor, "B S"]:
        """The scores before `freedom`. `starts`: the first tokens of the steps, for scorers by steps."""
        check_fill_token(model, self.fill_token_id)
        fill = rollouts.pad_token_id if self.fill_token_id is None else self.fill_token_id
        rows = scorable_rows(rollouts)
        first, distinct_index = distinct_rows(rollouts, rows)
        scores: list[Tensor] = [torch.empty(0)] * len(first)
        tokens = 0
        if first:
            probe = self.probe_at(rollouts.step)
            chosen = rows[first]
            of_reasoning = None if starts is None else starts[chosen][rollouts.reasoning_mask[chosen]]
            texts = texts_until_answer(rollouts.select(chosen), probe, of_reasoning)
            with scoring_mode(model):
                share = self.share_prefixes and can_share_prefixes(model)
                counterfactuals = Counterfactuals(
                    model, choose_decoder(model), probe, FILLS[self.fill], fill, self.seed, self.pass_budget, share
                )
                counts = texts.reasoning.sum(1).tolist()

                def score(chunk: list[int]) -> tuple[Tensor, int]:
                    return self.score(counterfactuals, texts.select(torch.tensor(chunk, device=rows.device)))

                for chunk, (values, chunk_tokens) in self.pass_budget.run_in_chunks(texts.lengths(), score):
                    tokens += chunk_tokens
                    for i, value in zip(chunk, values.split([counts[i] for i in chunk]), strict=True):
                        scores[i] = value
        self.metrics = {"forward_equivalents": tokens / max(1, int(rollouts.attention_mask.sum()))}
        return place_rows([scores[i] for i in distinct_index], rollouts.reasoning_mask, rows)
