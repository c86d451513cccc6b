"""Total effect: would the answer have come out otherwise, had this token been another?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import PositiveInt, Probability, checked
from oar_lightning.credit.freedom import FREE_BELOW, Freedom, Mode
from oar_lightning.credit.scorers.oar_p.base import ONE_FILL, TOKENS, CounterfactualScorer
from oar_lightning.credit.scorers.oar_p.counterfactual import Counterfactuals
from oar_lightning.credit.scorers.oar_p.fills import SAME_EACH_DRAW, FillName
from oar_lightning.credit.scorers.oar_p.texts import Texts
from oar_lightning.credit.scorers.probes import PROBES, Probe
from oar_lightning.credit.scorers.total_effect.changes import read_tokens, token_changes
from oar_lightning.credit.scorers.total_effect.recursion import total_effects
from oar_lightning.policy.token_budget import SomeTokens, TokenBudget
from oar_lightning.types import Rollouts


@checked("scorer", ONE_FILL)
@dataclass(eq=False)
class TotalEffect(CounterfactualScorer):
    """I_t = 1 - (1 - d_t) prod over later reasoning s of (1 - c_ts I_s), the probability that another token at t would have
    changed the answer, directly (d_t) or through later tokens; in [0, 1], then times `freedom`.

    c_ts = 1 - min(1, p'(y_s) / p(y_s)), p' = the prediction of token s with token t replaced (see `total_effects`). OAR-P holds
    all later tokens fixed, so that a restated result hides where it came from; here the restatement would change, too.

    Counterfactuals are run for free tokens (p < `free_below`), and for tokens that would follow: those that another one's
    change changes with a probability above 1 - `free_below`. The other tokens neither choose nor pass anything on, and score 0.

    Args:
        token_budget: padded tokens of one pass over counterfactuals, or `auto`; bounds memory, does not change the numbers.
        fill: what replaces a token (see `OarP`); `model_sample` is what the policy might have written instead.
        fill_token_id: of fill=pad.
        seed: of the draws; a completion's draws depend on its tokens and this.
        share_prefixes: see `OarP`.
        num_draws: replacements of each token, whose scores are averaged.
        freedom, free_below: see `Freedom`.
    """

    token_budget: TokenBudget | SomeTokens = TOKENS
    fill: FillName = "model_sample"
    fill_token_id: int | None = None
    seed: int = 0
    share_prefixes: bool = True
    num_draws: PositiveInt = 1
    freedom: Mode = "weight"
    free_below: Probability = FREE_BELOW

    def probe_at(self, step: int) -> Probe:
        return PROBES["answer_joint"]  # it reads all tokens of the answer

    def free_tokens(self, texts: Texts, logprobs: Float[Tensor, "N S"]) -> Bool[Tensor, "N S"]:
        """The tokens for which counterfactuals are run first."""
        return texts.reasoning & (logprobs.exp() < self.free_below)

    @property
    def idle(self) -> Mapping[str, str]:
        """`free_below` chooses what is run, too."""
        again = self.num_draws > 1 and self.fill in SAME_EACH_DRAW
        return {f"num_draws={self.num_draws}": f"scorer.fill={self.fill}, which is the same in each draw"} if again else {}

    @property
    def reach(self) -> float | None:
        """The probability of a change above which a token would follow; None where none is followed."""
        return 1 - self.free_below

    def score(self, counterfactuals: Counterfactuals, texts: Texts) -> tuple[Float[Tensor, " n"], int]:
        clean = read_tokens(counterfactuals, texts)
        free = self.free_tokens(texts, clean.logprobs)
        inside = slice(clean.start, None)
        tokens = clean.tokens
        effects = []
        for draw in range(self.num_draws):
            changes, run = token_changes(counterfactuals, clean, free, draw, self.reach)
            effects.append(total_effects(changes, texts.reasoning[:, inside], texts.answer[:, inside]))
            tokens += run
        scores = torch.stack(effects).mean(0)[texts.reasoning[:, inside]]
        return Freedom(self.freedom, self.free_below).of_logprobs(scores, clean.logprobs[texts.reasoning]), tokens

    def free(self, model: object, rollouts: Rollouts, scores: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        return scores  # by the clean pass already
