"""OAR-G, a gradient proxy of OAR-P (arXiv 2601.07408): one noisy copy, one gradient with respect to the embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.common.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt, Probability, checked
from oar_lightning.common.ranks import rank_correlation
from oar_lightning.credit.freedom import FREE_BELOW, Freedom, Mode
from oar_lightning.credit.scorers.base import Scorer, distinct_rows, place_rows, row_generator, scorable_rows
from oar_lightning.credit.scorers.prefix import read_prompts
from oar_lightning.credit.scorers.probes import Probe, ProbeSchedule
from oar_lightning.policy.decoder import choose_decoder
from oar_lightning.policy.language_model import can_share_prefixes, embed, scoring_mode
from oar_lightning.policy.lm_head import head_logits
from oar_lightning.policy.token_budget import SomeTokens, TokenBudget
from oar_lightning.types import Rollouts

TOKENS = 2048
"""The default budget, and the start of `auto` unless a memory plan gives another. Twice as many take longer on a CPU, whose
caches they leave, and twice the memory."""

STABILITY_ROWS = 4


@checked("scorer")
class OarG(Scorer):
    """I_t = |<dJ/de_t, e_t>|, J = KL(p || p(e + n)), n ~ N(0, noise_std^2) on reasoning tokens; nats.

    At noise_std -> 0 the gradient of the KL vanishes (it is the Fisher matrix times the noise), so one draw is a random
    sketch. `num_draws` draws are averaged, and `rank_stability` is measured: the mean Spearman correlation of two draws, with
    several draws what it makes that of two such averages (Spearman-Brown).

    Args:
        probe: which outcome is read, and when.
        noise_std: standard deviation of the noise, in units of the embeddings.
        num_draws: noisy copies whose scores are averaged.
        seed: of the noise; a completion's noise depends on its tokens, the rollout step and this, not on its neighbours.
        token_budget: padded tokens of one pass, or `auto`; bounds memory, does not change the numbers.
        stability_rows: with num_draws=1, completions that are scored with a second draw to measure `rank_stability`; at most
            one in eight of the batch but at least one; 0 for none.
        freedom, free_below: see `Freedom`.
    """

    def __init__(
        self,
        probe: ProbeSchedule = ProbeSchedule(),
        noise_std: NonNegativeFloat = 1e-3,
        num_draws: PositiveInt = 1,
        seed: int = 0,
        token_budget: SomeTokens = TOKENS,
        stability_rows: NonNegativeInt = STABILITY_ROWS,
        freedom: Mode = "none",
        free_below: Probability = FREE_BELOW,
    ) -> None:
        if noise_std == 0 and not {probe.name, probe.warmup if probe.warmup_steps else probe.name} <= {"answer_joint"}:
            raise ValueError(
                "scorer.noise_std=0 makes every score zero for a KL probe (its gradient vanishes at the clean text); "
                "set noise_std > 0, e.g. 1e-3, or scorer.probe.name=answer_joint"
            )
        self.probe = probe
        self.noise_std = noise_std
        self.num_draws = num_draws
        self.seed = seed
        self.token_budget = TokenBudget("scorer.token_budget", token_budget, TOKENS)
        self.stability_rows = stability_rows
        self.freedom = Freedom(freedom, free_below)

    @property
    def idle(self) -> Mapping[str, str]:
        unread = self.num_draws > 1 and self.stability_rows != STABILITY_ROWS
        rows = {f"stability_rows={self.stability_rows}": "scorer.num_draws > 1, which has draws to compare"} if unread else {}
        return {**self.freedom.idle, **self.probe.idle, **rows}

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        probe = self.probe.at(rollouts.step)
        rows = scorable_rows(rollouts)
        self.metrics = {"forward_equivalents": 0.0}
        if not len(rows):
            return torch.zeros(rollouts.token_ids.shape, device=rollouts.token_ids.device)
        first, distinct_index = distinct_rows(rollouts, rows)
        distinct = rows[first].tolist()
        copies = [(row, draw) for row in distinct for draw in range(self.num_draws)]
        twice_drawn = distinct
        if self.num_draws == 1:
            twice_drawn = distinct[: min(self.stability_rows, max(1, len(distinct) // 8))]
            copies += [(row, 1) for row in twice_drawn]
        scores, tokens = gradient_scores(model, rollouts, probe, copies, self._noise, self.token_budget)
        correlations = [rank_correlation(scores[row, 0], scores[row, 1]) for row in twice_drawn if len(scores[row, 0]) > 1]
        if correlations:
            self.metrics["rank_stability"] = of_mean(sum(correlations) / len(correlations), self.num_draws)
        means = [torch.stack([scores[row, draw] for draw in range(self.num_draws)]).mean(0) for row in distinct]
        placed = place_rows([means[i] for i in distinct_index], rollouts.reasoning_mask, rows)
        placed, passes = self.freedom(model, rollouts, placed, self.token_budget)
        self.metrics["forward_equivalents"] = tokens / max(1, int(rollouts.attention_mask.sum())) + passes
        return placed

    def _noise(self, rollouts: Rollouts, row: int, draw: int, size: int) -> Float[Tensor, "R H"]:
        rng = row_generator(rollouts, row, self.seed, draw)
        return self.noise_std * torch.randn(int(rollouts.reasoning_mask[row].sum()), size, generator=rng)


def of_mean(correlation: float, draws: int) -> float:
    """The correlation of two means of so many draws each, from that of single draws (Spearman and Brown)."""
    return correlation * draws / (1 + (draws - 1) * correlation) if correlation > 0 else correlation


def gradient_scores(
    model: Any,
    rollouts: Rollouts,
    probe: Probe,
    copies: Sequence[tuple[int, int]],
    noise: Callable[[Rollouts, int, int, int], Float[Tensor, "R H"]],
    token_budget: TokenBudget,
) -> tuple[dict[tuple[int, int], Float[Tensor, " R"]], int]:
    """|<dJ/de_t, e_t>| of each (row, draw), where e_t is the clean embedding; and the number of tokens that went through the
    model, those of backward passes included (a backward pass to the embeddings is half of a full one).

    No parameter gets a gradient. Every row must have an answer. `noise(rollouts, row, draw, hidden size)` is added to the
    row's reasoning tokens.
    """
    scores: dict[tuple[int, int], Tensor] = {}
    columns = torch.arange(rollouts.token_ids.shape[1], device=rollouts.token_ids.device)
    ends = columns.masked_fill(~rollouts.answer_mask, -1).amax(1)  # no state of the answer's last token, or after it, is read
    first = rollouts.attention_mask.long().argmax(1)
    start = int(rollouts.response_mask.any(0).long().argmax()) if can_share_prefixes(model) else 0
    with scoring_mode(model):
        decoder = choose_decoder(model, pack=False)
        # the prompt has no noise and no score: it is read once for all its completions, outside the graph
        prompts, owner, tokens = read_prompts(model, decoder, rollouts.token_ids[:, :start], first, token_budget)

        def score(chunk: list[int]) -> tuple[dict[tuple[int, int], Tensor], int]:
            clean_tokens = 0
            chunk_copies = [copies[i] for i in chunk]
            rows = torch.tensor([row for row, _ in chunk_copies], device=columns.device)
            run = slice(start, int(ends[rows].max()))  # the columns that are run here
            ids, reasoning = rollouts.token_ids[rows, run], rollouts.reasoning_mask[rows, run]
            place = probe.locate(rollouts.answer_mask[rows], rollouts.token_ids[rows])
            answer = place.select(torch.arange(len(rows), device=rows.device), start)
            past = prompts.select(owner[rows])
            with torch.no_grad():
                embeddings = embed(model, ids)
                if rollouts.prediction_states is not None:
                    clean = probe.read(model, rollouts.prediction_states[rows[:, None], place.columns], place)
                else:
                    first_copy, distinct_index = first_of_each(rows)
                    clean_tokens = ids[first_copy].numel()
                    read_at = answer.select(first_copy).read_at
                    states, _ = decoder(past.select(first_copy), embeddings[first_copy], read_at)
                    clean = probe.read(model, states, place.select(first_copy))[distinct_index]
            noisy = embeddings.clone()
            noisy[reasoning] += torch.cat([noise(rollouts, *copy, noisy.shape[-1]) for copy in chunk_copies]).to(noisy)
            noisy.requires_grad_()
            with torch.enable_grad():
                logits = head_logits(model, decoder(past, noisy, answer.read_at)[0])
                outcome = probe.outcome(logits, place.token_ids, place.valid)
                # autograd.grad, not backward: parameter gradients and DDP/DeepSpeed hooks must not see this
                (pull,) = torch.autograd.grad(probe.gap(clean, outcome).sum(), logits)
                scale = scale_to_one(pull)
                (gradient,) = torch.autograd.grad(logits, noisy, pull.mul_(scale[:, None, None]))
            saliency = (gradient.to(outcome.dtype) * embeddings.to(outcome.dtype)).sum(-1).abs() / scale[:, None]
            own = saliency[reasoning].split(reasoning.sum(1).tolist())
            return dict(zip(chunk_copies, own, strict=True)), clean_tokens + 2 * ids.numel()

        lengths = [int(ends[row]) - start for row, _ in copies]
        for _, (chunk_scores, chunk_tokens) in token_budget.run_in_chunks(lengths, score):
            scores.update(chunk_scores)
            tokens += chunk_tokens
    return scores, tokens


def scale_to_one(pull: Float[Tensor, "N A V"]) -> Float[Tensor, " N"]:
    """Of each row the power of two that brings its largest number to between 1/2 and 1; 1 for a row of zeros.

    The gap of a distribution to a near one is about a square, and its gradient so small that float16 would lose it on the way
    through the model, which begins behind the logits. A power of two takes no bit from formats that hold it.
    """
    most = torch.linalg.vector_norm(pull, torch.inf, (1, 2))
    exponent = torch.frexp(most)[1].clamp(min=-MOST_DOUBLINGS)  # 0 of a row of zeros
    return torch.ldexp(torch.ones_like(most), -exponent)


MOST_DOUBLINGS = 99
"""With so many every number that is scaled stays finite in float32."""


def first_of_each(values: Int[Tensor, " n"]) -> tuple[Int[Tensor, " m"], Int[Tensor, " n"]]:
    """The place where each distinct value first occurs, in order of value; and for each entry the index of its value."""
    distinct, index = values.unique(return_inverse=True)
    first = torch.full_like(distinct, len(values)).scatter_reduce(0, index, torch.arange(len(values)).to(index), "amin")
    return first, index
