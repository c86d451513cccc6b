"""OAR-P: counterfactual perturbation (arXiv 2601.07408): replace a token, see how far the outcome moves."""

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
"""Where `auto` starts unless a memory plan knows better."""


@dataclass(eq=False)
class OarP(Scorer):
    """I_t = KL(p || p^(t)), p^(t) = the probe with token t replaced by the fill token; nats.

    Args:
        probe: which outcome is read, and when.
        token_budget: padded tokens that a batch of counterfactuals runs, or `auto`; bounds memory, does not change the
            numbers. (More are slower on a CPU, whose caches they leave.)
        fill: what replaces the masked token and is attended to like any other: `pad` (`fill_token_id`, or the tokenizer's pad
            token where that is None), `mean_embedding`, `random_token`, `model_sample` (see `fills`).
        seed: of what `random_token` and `model_sample` draw; each completion's draws depend on its tokens and this.
        share_prefixes: counterfactuals share the keys and values of what precedes the masked token; otherwise, and for models
            whose cache cannot be shared, each is computed in full length. Does not change the numbers.
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
        first, number_of = distinct_rows(rollouts, rows)
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

                def score(numbers: list[int]) -> tuple[Tensor, int]:
                    return self.score(counterfactuals, texts.select(torch.tensor(numbers, device=rows.device)))

                for numbers, (values, ran) in self.pass_budget.run_in_chunks(texts.lengths(), score):
                    tokens += ran
                    for number, value in zip(numbers, values.split([counts[i] for i in numbers]), strict=True):
                        scores[number] = value
        self.metrics = {"forward_equivalents": tokens / max(1, rollouts.token_ids.numel())}
        return place_rows([scores[i] for i in number_of], rollouts.reasoning_mask, rows)

    def score(self, counterfactuals: Counterfactuals, texts: Texts) -> tuple[Float[Tensor, " n"], int]:
        """One score for each reasoning token, text by text, and the padded tokens that went through the model."""
        clean = counterfactuals.read(texts)
        distances, tokens = counterfactuals.distances(clean, texts.reasoning)
        return distances, clean.tokens + tokens
