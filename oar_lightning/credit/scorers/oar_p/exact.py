"""OAR-P, counterfactual perturbation (arXiv 2601.07408): replace a token and measure how far the outcome moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import Probability, checked
from oar_lightning.credit.freedom import FREE_BELOW, Mode
from oar_lightning.credit.scorers.oar_p.base import ONE_FILL, TOKENS, CounterfactualScorer
from oar_lightning.credit.scorers.oar_p.counterfactual import Counterfactuals
from oar_lightning.credit.scorers.oar_p.fills import FillName
from oar_lightning.credit.scorers.oar_p.texts import Texts
from oar_lightning.credit.scorers.probes import Probe, ProbeSchedule
from oar_lightning.policy.token_budget import SomeTokens, TokenBudget


@checked("scorer", ONE_FILL)
@dataclass(eq=False)
class OarP(CounterfactualScorer):
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
        freedom, free_below: see `Freedom`.
    """

    probe: ProbeSchedule = ProbeSchedule()
    token_budget: TokenBudget | SomeTokens = TOKENS
    fill: FillName = "pad"
    fill_token_id: int | None = None
    seed: int = 0
    share_prefixes: bool = True
    freedom: Mode = "none"
    free_below: Probability = FREE_BELOW

    @property
    def idle(self) -> Mapping[str, str]:
        return {**super().idle, **self.probe.idle}

    def probe_at(self, step: int) -> Probe:
        return self.probe.at(step)

    def score(self, counterfactuals: Counterfactuals, texts: Texts) -> tuple[Float[Tensor, " n"], int]:
        clean = counterfactuals.read(texts)
        distances, tokens = counterfactuals.distances(clean, texts.reasoning)
        return distances, clean.tokens + tokens
