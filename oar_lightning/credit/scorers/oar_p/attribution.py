"""First-order estimates of counterfactual outcomes: all tokens of a text at the cost of a few passes over it.

Attribution patching with exact attention (AtP with the QK fix, arXiv 2403.00745). A masked token acts on later tokens only
through the keys and values that they attend to. Its effect on every attention output is computed exactly, layer by layer; the
effect of those changes on the outcome is taken from the outcome's gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.ranges import Fraction, PositiveInt, checked
from oar_lightning.credit.scorers.oar_p.coarse import Estimate, Late
from oar_lightning.credit.scorers.oar_p.counterfactual import Clean, Counterfactuals
from oar_lightning.credit.scorers.oar_p.texts import Texts
from oar_lightning.policy.attention import LayerRecord, masked_positions

QUERIES = 64
"""Queries of one block of a layer's estimate: few, so that their attention weights stay in a core's cache."""


@checked("scorer.coarse")
@dataclass(frozen=True)
class Attribution:
    """A coarse stage of approximate OAR-P: tokens' scores to first order.

    Args:
        directions: leading directions of the outcome's Fisher matrix, each of which costs a backward pass; a scalar outcome
            has one.
        late_share: see `CoarseStage`. On the built-in policies 1 agreed best with the exact scores.
    """

    directions: PositiveInt = 3
    late_share: Fraction = 1.0

    def estimate(self, counterfactuals: Counterfactuals, texts: Texts, late: Late) -> Estimate:
        """Needs `can_share_prefixes`."""
        if not counterfactuals.share_prefixes:
            raise ValueError(
                "scorer.coarse: attribution needs scorer.share_prefixes=true and a model with plain keys and values in every "
                "layer (no sliding window, no recurrent state); use scorer/coarse=spans"
            )
        records: list[LayerRecord] = []
        with torch.enable_grad():
            clean = counterfactuals.read(texts, records)
            readings = counterfactuals.probe.readings(clean.outcome.detach(), clean.outcome, self.directions)
            backward, filling, end = readings.shape[1], counterfactuals.fill, texts.token_ids.shape[1]
            begin = texts.reasoning.long().argmax(1)
            costs = (begin - texts.first) + (1 + backward) * (end - begin) + texts.reasoning.sum(1)
            costs += filling.passes * (end - texts.first)
            spared = late(costs.tolist())
            wanted = texts.reasoning & ~spared
            scores = torch.zeros(texts.reasoning.shape, dtype=clean.outcome.dtype, device=wanted.device)
            if not wanted.any():
                return Estimate(scores, costs.tolist(), spared, clean.tokens, clean.detach())
            outs = [record.out for record in records]
            gradients = [
                torch.autograd.grad(readings[:, m].sum(), outs, retain_graph=m + 1 < readings.shape[1])
                for m in range(readings.shape[1])
            ]
        clean = clean.detach()
        positions, valid = masked_positions(wanted)
        places = positions.masked_fill(~valid, clean.past.width - 1)  # behind all that is seen, so that positions ascend
        shifts = torch.zeros(*readings.shape, positions.shape[1], dtype=readings.dtype, device=positions.device)
        for layer, (record, replaced) in enumerate(
            zip([record.detached() for record in records], self._replaced(counterfactuals, clean, positions), strict=True)
        ):
            gradient = torch.stack([of_layers[layer] for of_layers in gradients])
            with torch.autocast(gradient.device.type, enabled=False):  # its sums are too long for 16 bits
                shifts += _outcome_shift(record, gradient, replaced, places, texts.first)
        estimates = counterfactuals.probe.distance_of_shift(shifts.masked_fill(~valid[:, None], 0.0))
        scores = scores.to(estimates).masked_scatter(wanted, estimates[valid])
        tokens = clean.tokens + backward * (clean.tokens - filling.tokens(texts)) + positions.numel()
        return Estimate(scores, costs.tolist(), spared, tokens, clean)

    def _replaced(self, counterfactuals: Counterfactuals, clean: Clean, positions: Int[Tensor, "n R"]) -> list[LayerRecord]:
        """The attention of fill tokens, each of which alone replaces one reasoning token."""
        rows = torch.arange(len(positions), device=positions.device)[:, None]
        fills = clean.fills[rows, positions]
        read_at = torch.zeros_like(positions[:, :1]), torch.ones_like(positions[:, :1], dtype=torch.bool)  # state not used
        records: list[LayerRecord] = []
        with torch.no_grad():
            counterfactuals.decoder(clean.past, fills, read_at, records=records, alone_at=positions)
        return records


def _outcome_shift(
    clean: LayerRecord,
    gradient: Float[Tensor, "M n W h d"],
    replaced: LayerRecord,
    positions: Int[Tensor, "n R"],
    first: Int[Tensor, " n"],
) -> Float[Tensor, "n M R"]:
    """Changes of the readings when each position's key and value in one layer are replaced, through all later queries.

    p is a query's weight of the clean key, and p' = exp(score of the replaced key) under the clean normaliser. The query's
    output then changes by (p' (v' - o) - p (v - o)) / (1 - p + p'), exactly. Both weights times the gradients are summed over
    the queries before they meet the values: one product for all directions, and no element-wise pass for any of them.

    `positions` ascend. Blocks of queries see no key behind them, so that half of all pairs are left out.
    """
    dtype = torch.promote_types(clean.query.dtype, torch.float32)
    heads, directions = clean.query.shape[1], len(gradient)

    def spread(x: Tensor) -> Float[Tensor, "n h T d"]:
        return x.to(dtype).repeat_interleave(heads // x.shape[1], 1)

    count = positions.shape[1]
    keys, new_keys, new_values = spread(clean.key), spread(replaced.key[:, :, -count:]), spread(replaced.value[:, :, -count:])
    new_keys = torch.nn.functional.pad(new_keys, (0, 1), value=-1.0)  # meets the normaliser
    at = positions[:, None, :, None].expand(-1, heads, -1, keys.shape[-1])
    values = spread(clean.value).gather(2, at)
    pulls = new_values.new_zeros(2, len(positions) * heads, count, directions * (keys.shape[-1] + 1))
    key = torch.arange(keys.shape[2], device=positions.device)
    padding: Bool[Tensor, "n 1 T"] = key < first[:, None, None]  # it sees itself, so that its normaliser is finite
    last = torch.stack([part.max() for part in clean.columns.split(QUERIES, 1)])  # column of each block
    before_last = torch.searchsorted(positions, last.repeat(len(positions), 1)).amax(0)
    for number, (end, reached) in enumerate(zip((last + 1).tolist(), before_last.tolist(), strict=True)):
        block = slice(number * QUERIES, (number + 1) * QUERIES)
        columns = clean.columns[:, block, None]
        queries = clean.query[:, :, block].to(dtype) * clean.scaling
        unseen = (padding[..., :end] & (key[:end] != columns)) | (key[:end] > columns)
        scores = (queries @ keys[:, :, :end].mT).masked_fill_(unseen[:, None], -torch.inf)
        highest = scores.amax(-1, keepdim=True)
        weights = scores.softmax(-1)
        normaliser = highest - weights.amax(-1, keepdim=True).log()
        queries = torch.cat([queries, normaliser], -1)
        slopes = gradient[:, :, block].permute(1, 3, 2, 0, 4).to(dtype)  # [n h W M d]
        levels = (slopes * clean.out[:, block].transpose(1, 2).to(dtype)[:, :, :, None]).sum(-1)
        slopes = torch.cat([slopes.flatten(3), levels], -1).flatten(0, 1)
        before = positions[:, None, :reached].clamp(max=end - 1)  # those of a row may lie behind the block: not `later`
        later = (columns > before).to(dtype)[:, None]
        old = weights.gather(3, before[:, None].expand(-1, heads, columns.shape[1], -1))
        new = (queries @ new_keys[:, :, :reached].mT).clamp_(max=60).exp_()  # at 60 the new key has all the weight already
        weight = (new - old).add_(1).clamp_(min=torch.finfo(torch.float32).eps)
        torch.div(later, weight, out=weight)
        for pull, moved in zip(pulls, (new, old), strict=True):
            pull[:, :reached].baddbmm_(moved.mul_(weight).flatten(0, 1).mT, slopes)
    through, levels = pulls.view(2, len(positions), heads, count, -1).split([directions * keys.shape[-1], directions], -1)
    through = through.unflatten(-1, (directions, -1))
    return (
        torch.einsum("nhrmd,nhrd->nmr", through[0], new_values)
        - torch.einsum("nhrmd,nhrd->nmr", through[1], values)
        - (levels[0] - levels[1]).sum(1).mT
    )
