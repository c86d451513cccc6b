"""OAR-P, counterfactual perturbation (arXiv 2601.07408): replace a token and measure how far the outcome moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.credit.scorers.base import Scorer, distinct_rows, place_rows, scorable_rows
from oar_lightning.credit.scorers.oar_p.counterfactual import Counterfactuals
from oar_lightning.credit.scorers.oar_p.fills import FILLS
from oar_lightning.credit.scorers.oar_p.texts import Texts, texts_until_answer
from oar_lightning.credit.scorers.probes import ProbeSchedule
from oar_lightning.policy.decoder import choose_decoder
from oar_lightning.policy.language_model import can_share_prefixes, scoring_mode
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Rollouts

TOKENS = 2048
"""The start of `auto`, unless a memory plan gives another."""


@dataclass(eq=False)
class OarP(Scorer):
    """I_t = KL(p || p^(t)), p^(t) = the probe with token t replaced by the fill token; nats.

    Args:
        probe: which outcome is read, and when.
        token_budget: padded tokens of one pass over counterfactuals, or `auto`; bounds memory, does not change the numbers.
            (A larger pass leaves a CPU's caches and is slower there.)
        fill: what replaces the masked token and is attended to like any token: `pad` (`fill_token_id`, or the tokenizer's pad
            token where that is None), `mean_embedding`, `random_token`, `model_sample` (see `fills`).
        seed: of the draws of `random_token` and `model_sample`; a completion's draws depend on its tokens and this.
        share_prefixes: counterfactuals share the keys and values of the tokens before the masked one. Otherwise, and for
            models whose cache cannot be shared, each is computed in full length. Does not change the numbers.
    """

    probe: ProbeSchedule = ProbeSchedule()
    token_budget: TokenBudget | int | Literal["auto"] = TOKENS
    fill: str = "pad"
    fill_token_id: int | None = None
    seed: int = 0
    share_prefixes: bool = True

    def __post_init__(self) -> None:
        super().__init__()
        if not isinstance(self.token_budget, TokenBudget):
            self.token_budget = TokenBudget("scorer.token_budget", self.token_budget, TOKENS)
        if self.fill not in FILLS:
            raise ValueError(f"scorer.fill must be one of {', '.join(FILLS)}, got {self.fill}")
        if self.fill != "pad" and self.fill_token_id is not None:
            raise ValueError(
                f"scorer.fill_token_id={self.fill_token_id} is only for scorer.fill=pad, not {self.fill}; leave one out"
            )

    @property
    def pass_budget(self) -> TokenBudget:
        assert isinstance(self.token_budget, TokenBudget)
        return self.token_budget

    @torch.no_grad()
    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        fill = rollouts.pad_token_id if self.fill_token_id is None else self.fill_token_id
        rows = scorable_rows(rollouts)
        first, distinct_index = distinct_rows(rollouts, rows)
        scores: list[Tensor] = [torch.empty(0)] * len(first)
        tokens = 0
        if first:
            probe = self.probe.at(rollouts.step)
            texts = texts_until_answer(rollouts.select(rows[first]), probe)
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
        self.metrics = {"forward_equivalents": tokens / max(1, rollouts.token_ids.numel())}
        return place_rows([scores[i] for i in distinct_index], rollouts.reasoning_mask, rows)

    def score(self, counterfactuals: Counterfactuals, texts: Texts) -> tuple[Float[Tensor, " n"], int]:
        """One score for each reasoning token, text by text, and the padded tokens that went through the model."""
        clean = counterfactuals.read(texts)
        distances, tokens = counterfactuals.distances(clean, texts.reasoning)
        return distances, clean.tokens + tokens
