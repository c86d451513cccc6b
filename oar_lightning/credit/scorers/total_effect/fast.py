"""Total effect to first order: importance flows from the answer backwards, a few gradients deep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.ranges import PositiveInt, Probability, checked
from oar_lightning.credit.freedom import FREE_BELOW, Freedom, Mode
from oar_lightning.credit.scorers.base import Scorer, distinct_rows, place_rows, row_generator, scorable_rows
from oar_lightning.credit.scorers.oar_p.fills import draw_several
from oar_lightning.credit.scorers.prefix import read_prompts
from oar_lightning.policy.decoder import Decoder, Past, choose_decoder
from oar_lightning.policy.language_model import can_share_prefixes, embed, scoring_mode
from oar_lightning.policy.lm_head import head_logits, rows_per_chunk
from oar_lightning.policy.token_budget import SomeTokens, TokenBudget
from oar_lightning.types import Rollouts

TOKENS = 2048
"""The start of `auto`, unless a memory plan gives another."""


@checked("scorer")
class TotalEffectFast(Scorer):
    """I_t = |<g_t, e(y') - e(y_t)>|, averaged over draws y' ~ pi(. | prefix) other than y_t, over the completion's largest; in
    [0, 1], then times `freedom`.

    g_t is the gradient of sum_s w_s u_s with respect to the embedding of token t. u_s is the log-odds of token s as written: a
    log-probability has no gradient where the token is certain, as a restated result is. w_s = I_s / max(u_s, 1), the
    importance of s for each fraction of the way to even odds; answer tokens have I = 1. The first round knows the answer alone
    and finds direct effects, each further one follows one more restatement. First-order effects of a change as large as another
    token are too small, the more so with each restatement: therefore they are taken relative to the largest.

    It costs a forward pass and `rounds` backward passes to the embeddings. Effects of both signs cancel in the sum; see
    reports/total_effect for where it agrees with `TotalEffect` and where not.

    Args:
        rounds: gradients, one after the other.
        num_draws: replacements of each token; they share the gradients.
        seed: of the draws; a completion's draws depend on its tokens, the rollout step and this.
        token_budget: padded tokens of one pass, or `auto`; bounds memory, does not change the numbers.
        freedom, free_below: see `Freedom`.
    """

    def __init__(
        self,
        rounds: PositiveInt = 2,
        num_draws: PositiveInt = 8,
        seed: int = 0,
        token_budget: SomeTokens = TOKENS,
        freedom: Mode = "weight",
        free_below: Probability = FREE_BELOW,
    ) -> None:
        self.rounds = rounds
        self.num_draws = num_draws
        self.seed = seed
        self.token_budget = TokenBudget("scorer.token_budget", token_budget, TOKENS)
        self.freedom = Freedom(freedom, free_below)

    @property
    def idle(self) -> Mapping[str, str]:
        return self.freedom.idle

    @torch.no_grad()
    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        rows = scorable_rows(rollouts)
        self.metrics = {"forward_equivalents": 0.0}
        if not len(rows):
            return torch.zeros(rollouts.token_ids.shape, device=rollouts.token_ids.device)
        places, distinct_index = distinct_rows(rollouts, rows)
        part = rollouts.select(rows[places])
        columns = torch.arange(part.token_ids.shape[1], device=rows.device)
        ends = columns.masked_fill(~part.answer_mask, -1).amax(1)  # no state of the answer's last token, or after it, is read
        # from the prompt's last column on, which predicts the completion's first token
        start = int(part.response_mask.any(0).long().argmax()) - 1 if can_share_prefixes(model) else 0
        scores: list[Tensor] = [torch.empty(0)] * len(part)
        with scoring_mode(model):
            decoder = choose_decoder(model)
            first = part.attention_mask.long().argmax(1)
            prompts, owner, tokens = read_prompts(model, decoder, part.token_ids[:, :start], first, self.token_budget)

            def score(chunk: list[int]) -> tuple[list[Tensor], int]:
                at = torch.tensor(chunk, device=rows.device)
                window = slice(start, int(ends[at].max()) + 1)
                text = _Text(
                    part.token_ids[at, window],
                    part.reasoning_mask[at, window],
                    part.answer_mask[at, window],
                    self._uniforms(part, chunk)[:, window],
                    part.temperature,
                )
                return self._effects(model, decoder, prompts.select(owner[at]), text), text.ids[:, 1:].numel()

            for chunk, (values, ran) in self.token_budget.run_in_chunks((ends - start).tolist(), score):
                tokens += (1 + self.rounds) * ran
                for i, value in zip(chunk, values, strict=True):
                    scores[i] = value
        self.metrics["forward_equivalents"] = tokens / max(1, int(rollouts.attention_mask.sum()))
        return place_rows([scores[i] for i in distinct_index], rollouts.reasoning_mask, rows)

    def _uniforms(self, rollouts: Rollouts, chunk: list[int]) -> Float[Tensor, "n S K"]:
        out = torch.zeros(len(chunk), rollouts.token_ids.shape[1], self.num_draws, dtype=torch.float64)
        for i, row in enumerate(chunk):
            mask = rollouts.reasoning_mask[row].cpu()
            rng = row_generator(rollouts, row, self.seed)
            out[i, mask] = torch.rand(int(mask.sum()), self.num_draws, dtype=torch.float64, generator=rng)
        return out.to(rollouts.token_ids.device)

    def _effects(self, model: Any, decoder: Decoder, past: Past, text: _Text) -> list[Float[Tensor, " R"]]:
        """The scores of each text's reasoning tokens."""
        embeddings = embed(model, text.ids[:, :-1]).detach()
        width = torch.arange(embeddings.shape[1], device=embeddings.device).expand(len(embeddings), -1)
        with torch.enable_grad():
            given = embeddings.clone().requires_grad_()
            states, _ = decoder(past, given, (width, torch.ones_like(width, dtype=torch.bool)))
        found = read_odds(model, states.detach(), text)
        # the columns of `given` are those of tokens 0 .. W-2, the readings are about tokens 1 .. W-1
        reasoning, answer = text.reasoning[:, 1:], text.answer[:, 1:]
        scale = found.odds.clamp(min=1)
        influence = torch.zeros_like(scale)
        for left in reversed(range(self.rounds)):
            weights = torch.where(answer, torch.ones_like(influence), influence) / scale
            with torch.enable_grad():
                # autograd.grad, not backward: parameter gradients and DDP/DeepSpeed hooks must not see this
                (gradient,) = torch.autograd.grad(
                    states, given, found.pull * weights[..., None].to(states), retain_graph=left > 0
                )
            changes = torch.stack([self._change(model, gradient, embeddings, ids) for ids in found.others.unbind(-1)])
            # the last token of the window belongs to the answer or what follows it
            sizes = torch.nn.functional.pad(changes.mean(0)[:, 1:], (0, 1)).to(scale).masked_fill(~reasoning, 0.0)
            influence = sizes / sizes.amax(1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)
        scores = self.freedom.of_logprobs(influence, found.logprobs)
        return [scores[i, mask] for i, mask in enumerate(reasoning)]

    def _change(
        self, model: Any, gradient: Float[Tensor, "n W H"], embeddings: Float[Tensor, "n W H"], ids: Int[Tensor, "n W"]
    ) -> Float[Tensor, "n W"]:
        """First-order size of the change where each token is replaced."""
        difference = torch.nn.functional.pad(embed(model, ids)[:, :-1], (0, 0, 1, 0)) - embeddings
        wide = torch.promote_types(gradient.dtype, torch.float32)
        return (gradient.to(wide) * difference.to(wide)).sum(-1).abs()


class _Text(NamedTuple):
    """Columns of some completions from their prompts' last one to their answers' end, with uniform numbers for the draws."""

    ids: Int[Tensor, "n S"]
    reasoning: Bool[Tensor, "n S"]
    answer: Bool[Tensor, "n S"]
    uniforms: Float[Tensor, "n S K"]
    temperature: float


class Odds(NamedTuple):
    """Of reasoning and answer tokens, 0 elsewhere: log-probability, log-odds, its gradient with respect to the state that
    predicts the token, and other tokens that the policy might have sampled."""

    logprobs: Float[Tensor, "n W"]
    odds: Float[Tensor, "n W"]
    pull: Float[Tensor, "n W H"]
    others: Int[Tensor, "n W K"]


def read_odds(model: Any, states: Float[Tensor, "n W H"], text: _Text) -> Odds:
    """The readings of tokens 1 .. W from the states before them, a bounded number of logits at a time."""
    wanted = (text.reasoning | text.answer)[:, 1:]
    hidden, targets, uniforms = states[wanted], text.ids[:, 1:][wanted], text.uniforms[:, 1:][wanted]
    size = rows_per_chunk(model.get_output_embeddings().weight.shape[0])
    parts: list[tuple[Tensor, ...]] = []
    for h, y, u in zip(hidden.split(size), targets.split(size), uniforms.split(size), strict=True):
        with torch.enable_grad():
            h = h.detach().requires_grad_()
            logits = head_logits(model, h) / text.temperature
            chosen = logits.gather(-1, y[:, None])[:, 0]
            odds = chosen - logits.scatter(-1, y[:, None], -torch.inf).logsumexp(-1)
            (pull,) = torch.autograd.grad(odds.sum(), h)
        parts.append((torch.nn.functional.logsigmoid(odds.detach()), odds.detach(), pull, draw_several(logits.detach(), y, u)))
    logprobs, odds, pull, others = (torch.cat(x) for x in zip(*parts, strict=True))

    def spread(values: Tensor) -> Tensor:
        out = values.new_zeros(*wanted.shape, *values.shape[1:])
        out[wanted] = values
        return out

    return Odds(spread(logprobs), spread(odds), spread(pull), spread(others))
