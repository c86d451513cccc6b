"""OAR-G: a gradient proxy of OAR-P (arXiv 2601.07408): one noisy copy, one gradient with respect to the embeddings."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.language_model import embed, evaluating
from oar_lightning.scoring.base import Scorer, chunks_by_tokens, place_rows, row_generator, scorable_rows
from oar_lightning.scoring.prefix import PromptStates
from oar_lightning.scoring.probes import Probe, ProbeSchedule
from oar_lightning.types import Rollouts


class OarG(Scorer):
    """I_t = |<dJ/de_t, e_t>|, J = KL(p || p(e + n)), n ~ N(0, noise_std^2) on reasoning tokens; nats.

    At noise_std -> 0 the gradient of the KL vanishes (Fisher matrix times noise), so a draw is a random sketch:
    `num_draws` are averaged, and `rank_stability` (mean Spearman correlation of two draws) is measured on a few rows.

    Args:
        probe: which outcome is read, and when.
        noise_std: standard deviation of the noise, in units of the embeddings.
        num_draws: noisy copies whose scores are averaged.
        seed: of the noise; each completion's noise depends on its tokens, the rollout and this, not on its neighbours.
        token_budget: padded tokens of one batch; bounds memory, does not change the numbers.
        stability_rows: completions scored with a second draw to measure rank stability when num_draws is 1, at most one in
            eight of the batch but at least one; 0 for none.
    """

    def __init__(
        self,
        probe: ProbeSchedule = ProbeSchedule(),
        noise_std: float = 1e-3,
        num_draws: int = 1,
        seed: int = 0,
        token_budget: int = 4096,
        stability_rows: int = 4,
    ) -> None:
        super().__init__()
        if noise_std < 0:
            raise ValueError(f"scorer.noise_std must be >= 0, got {noise_std}")
        if noise_std == 0 and not {probe.name, probe.warmup if probe.warmup_steps else probe.name} <= {"answer_joint"}:
            raise ValueError(
                "scorer.noise_std=0 makes every score zero for a KL probe (its gradient vanishes at the clean text); "
                "set noise_std > 0, e.g. 1e-3, or scorer.probe.name=answer_joint"
            )
        if num_draws < 1:
            raise ValueError(f"scorer.num_draws must be >= 1, got {num_draws}")
        if token_budget < 1:
            raise ValueError(f"scorer.token_budget is a number of tokens and must be >= 1, got {token_budget}")
        self.probe = probe
        self.noise_std = noise_std
        self.num_draws = num_draws
        self.seed = seed
        self.token_budget = token_budget
        self.stability_rows = stability_rows

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        probe = self.probe.at(rollouts.step)
        rows = scorable_rows(rollouts)
        self.metrics = {"forward_equivalents": 0.0}
        if not len(rows):
            return torch.zeros(rollouts.token_ids.shape, device=rollouts.token_ids.device)
        draws = [self._draw(model, rollouts, rows, probe, draw) for draw in range(self.num_draws)]
        compared = [d[: len(rows)] for d in draws]
        if self.num_draws == 1 and self.stability_rows:
            few = rows[: min(self.stability_rows, max(1, len(rows) // 8))]
            compared = [draws[0][: len(few)], self._draw(model, rollouts, few, probe, draw=1)]
        if len(compared) > 1:
            pairs = [rank_correlation(a, b) for a, b in zip(compared[0], compared[1], strict=True) if len(a) > 1]
            if pairs:
                self.metrics["rank_stability"] = sum(pairs) / len(pairs)
        self.metrics["forward_equivalents"] = (1 + 3 * self.num_draws) * len(rows) / len(rollouts)
        return place_rows([torch.stack(d).mean(0) for d in zip(*draws, strict=True)], rollouts.reasoning_mask, rows)

    def _draw(self, model: Any, rollouts: Rollouts, rows: Tensor, probe: Probe, draw: int) -> list[Float[Tensor, " R"]]:
        """Scores of the given rows under one draw of the noise."""
        hidden_size = model.get_input_embeddings().weight.shape[1]
        scores: dict[int, Tensor] = {}
        lengths = rollouts.attention_mask[rows].sum(1).tolist()
        for chunk in chunks_by_tokens(lengths, self.token_budget):
            part = rollouts.select(rows[chunk])
            noise = torch.zeros(*part.token_ids.shape, hidden_size)
            for i in range(len(part)):
                mask = part.reasoning_mask[i].cpu()
                rng = row_generator(part, i, self.seed, draw)
                noise[i, mask] = torch.randn(int(mask.sum()), hidden_size, generator=rng)
            importance = gradient_scores(model, part, probe, self.noise_std * noise)
            scores.update({row: importance[i, part.reasoning_mask[i]] for i, row in enumerate(chunk)})
        return [scores[i] for i in range(len(rows))]


def gradient_scores(model: Any, rollouts: Rollouts, probe: Probe, noise: Float[Tensor, "B S H"]) -> Float[Tensor, "B S"]:
    """|<dJ/de_t, e_t>| for given noise on the embeddings; e_t is the clean embedding. No parameter gets a gradient.

    Every row must have an answer.
    """
    with evaluating(model), torch.enable_grad():
        # the prompt has no noise and no score: its states are run once for all its completions, outside the graph
        prompts = PromptStates(model, rollouts)
        # nothing after the answer is read
        end = int(rollouts.answer_mask.any(0).nonzero().max()) + 1
        columns = slice(prompts.start, end)
        ids, answer = rollouts.token_ids[:, columns], rollouts.answer_mask[:, columns]
        with torch.no_grad():
            embeddings = embed(model, ids)
            clean = probe.read(model, prompts.hidden_states(embeddings), ids, answer)
        noisy = (embeddings + noise[:, columns].to(embeddings)).requires_grad_()
        outcome = probe.read(model, prompts.hidden_states(noisy), ids, answer)
        # autograd.grad, not backward: parameter gradients and DDP/DeepSpeed hooks must not see this
        (gradient,) = torch.autograd.grad(probe.gap(clean, outcome).sum(), noisy)
    saliency = (gradient.to(outcome.dtype) * embeddings.to(outcome.dtype)).sum(-1).abs()
    scores = torch.zeros(rollouts.token_ids.shape, dtype=saliency.dtype, device=saliency.device)
    scores[:, columns] = saliency
    return scores.masked_fill(~rollouts.reasoning_mask, 0.0)


def rank_correlation(a: Float[Tensor, " n"], b: Float[Tensor, " n"]) -> float:
    """Spearman's correlation with mid-ranks for ties; 0 where either side is constant."""
    ranks = [(x[:, None] > x).sum(1) + 0.5 * (x[:, None] == x).sum(1) for x in (a.double(), b.double())]
    centred = [r - r.mean() for r in ranks]
    norm = float(centred[0].norm() * centred[1].norm())
    return float(centred[0] @ centred[1]) / norm if norm else 0.0
