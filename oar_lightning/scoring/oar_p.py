"""OAR-P: counterfactual perturbation (arXiv 2601.07408): replace a token, see how far the outcome moves."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.language_model import scoring
from oar_lightning.scoring.base import Scorer, distinct_rows, place_rows, scorable_rows
from oar_lightning.scoring.counterfactual import Counterfactuals
from oar_lightning.scoring.probes import Probe, ProbeSchedule
from oar_lightning.scoring.texts import Texts, texts_until_answer
from oar_lightning.types import Rollouts


class OarP(Scorer):
    """I_t = KL(p || p^(t)), p^(t) = the probe with token t replaced by the fill token; nats.

    Args:
        probe: which outcome is read, and when.
        token_budget: padded tokens of one batch of counterfactuals; bounds memory, does not change the numbers.
        fill_token_id: replaces the masked token and is attended to like any other; None takes the tokenizer's pad token.
        block: counterfactuals of this many neighbouring positions share the keys and values of what precedes them; 0
            computes each in full length, as do models whose cache cannot be shared. Does not change the numbers.
    """

    def __init__(
        self,
        probe: ProbeSchedule = ProbeSchedule(),
        token_budget: int = 4096,
        fill_token_id: int | None = None,
        block: int = 8,
    ) -> None:
        super().__init__()
        if token_budget < 1:
            raise ValueError(f"scorer.token_budget is a number of tokens and must be >= 1, got {token_budget}")
        if block < 0:
            raise ValueError(f"scorer.block is a number of positions and must be >= 0 (0: no sharing), got {block}")
        self.probe = probe
        self.token_budget = token_budget
        self.fill_token_id = fill_token_id
        self.block = block

    @torch.no_grad()
    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        fill = rollouts.pad_token_id if self.fill_token_id is None else self.fill_token_id
        rows = scorable_rows(rollouts)
        first, twin = distinct_rows(rollouts, rows)
        scores: list[Tensor] = []
        tokens = 0
        if first:
            masking = Counterfactuals(fill, self.token_budget, self.block)
            with scoring(model):
                texts = texts_until_answer(rollouts.select(rows[first]))
                scores, tokens = self.score(model, texts, self.probe.at(rollouts.step), masking)
        self.metrics = {"forward_equivalents": tokens / max(1, rollouts.token_ids.numel())}
        return place_rows([scores[i] for i in twin], rollouts.reasoning_mask, rows)

    def score(self, model: Any, texts: Texts, probe: Probe, masking: Counterfactuals) -> tuple[list[Float[Tensor, " R"]], int]:
        """One score for each reasoning token of each text, and the padded tokens that went through the model."""
        return masking.distances(model, texts, probe, texts.reasoning)
