"""Key tokens by counting: which token ids tell a group's correct completions from the wrong ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import checked
from oar_lightning.credit.component import Region, group_advantages_of, region_mask
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.credit.scorers.forward_free.base import groups
from oar_lightning.types import Rollouts

K1, B = 2.0, 0.5
"""Of the term frequencies' saturation and of their correction for length, as in BM25."""


@checked("scorer")
class Ktae(Scorer):
    """The key value of a token's id in its group (KTAE, arXiv 2505.16826), in [-1, 1]: for gate=signed with combine=add.

    From the 2 x 2 table of (id occurs, does not) x (A > 0, A <= 0), of the completions whose reward is known:
    key = 2 sigmoid((f + g) x / 2) - 1, where f = exp(-2 p)
    with Fisher's exact two-sided p (0 where p = 1), g the information gain in bits, and x the difference of asin sqrt of the
    two shares plus, with `frequencies`, tf+ / tf- - tf- / tf+ of saturated term frequencies. That ratio is infinite but for a
    1e-5 where an id occurs in one class only, which then has key +-1 whatever p is; without it the key follows the
    significance.
    """

    signed = True
    added = True
    reads_groups = True

    def __init__(self, frequencies: bool = True, region: Region = "response") -> None:
        self.covers = region
        self.frequencies = frequencies

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        advantages = group_advantages_of(rollouts)
        mask = region_mask(rollouts, self.covers)
        out = torch.zeros(mask.shape, device=mask.device)
        for rows in groups(mask, rollouts.group_size):
            known = rollouts.rewards[rows].isfinite()
            right = advantages[rows][known] > 0
            if not right.any() or right.all():
                continue
            inside = mask[rows] & known[:, None]
            ids, index = rollouts.token_ids[rows][inside].unique(return_inverse=True)
            owner = inside.nonzero()[:, 0]
            keys = key_values(_counts(index, owner, len(known), len(ids))[known], right, self.frequencies)
            out[rows] = out[rows].masked_scatter(inside, keys[index].to(out))
        return out


def _counts(index: Tensor, owner: Tensor, rows: int, ids: int) -> Float[Tensor, "G U"]:
    """How often each id occurs in each completion."""
    out = torch.zeros(rows, ids, dtype=torch.float64, device=index.device)
    return out.index_put((owner, index), torch.ones(len(index), dtype=torch.float64, device=index.device), accumulate=True)


def key_values(counts: Float[Tensor, "G U"], right: Bool[Tensor, " G"], frequencies: bool) -> Float[Tensor, " U"]:
    """The key value of each id from its number of occurrences in each completion."""
    occurs = (counts > 0).double()
    a, b = occurs[right].sum(0), occurs[~right].sum(0)
    n_right, n_wrong = float(right.sum()), float((~right).sum())
    p = fisher_p(a, b, n_right, n_wrong)
    f = torch.where(p < 1 - 1e-9, (-2 * p).exp(), torch.zeros_like(p))
    x = (a / n_right).sqrt().asin() - (b / n_wrong).sqrt().asin()
    if frequencies:
        total_right, total_wrong = counts[right].sum(), counts[~right].sum()
        mean = (total_right + total_wrong) / 2
        tf_right = _saturated(counts[right].sum(0) / total_right.clamp(min=1), total_right / mean)
        tf_wrong = _saturated(counts[~right].sum(0) / total_wrong.clamp(min=1), total_wrong / mean)
        x = x + tf_right / (tf_wrong + 1e-5) - tf_wrong / (tf_right + 1e-5)
    return 2 * ((f + information_gain(a, b, n_right, n_wrong)) * x / 2).sigmoid() - 1


def _saturated(share: Float[Tensor, " U"], length: Tensor) -> Float[Tensor, " U"]:
    return share * (K1 + 1) / (share + K1 * (1 - B + B * length))


def fisher_p(a: Float[Tensor, " U"], b: Float[Tensor, " U"], n_right: float, n_wrong: float) -> Float[Tensor, " U"]:
    """Fisher's exact two-sided p of occurring in a of n_right and b of n_wrong completions: the probability, with a + b given,
    of tables that are no more likely."""
    k = torch.arange(int(n_right) + 1, dtype=torch.float64, device=a.device)
    total = (a + b)[:, None]

    def log_choose(n: Tensor, k: Tensor) -> Tensor:
        return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)

    right, wrong = torch.full_like(total, n_right), torch.full_like(total, n_wrong)
    possible = (k <= total) & (total - k <= n_wrong)
    log_p = log_choose(right, k.expand(len(a), -1)) + log_choose(wrong, (total - k).clamp(min=0, max=n_wrong))
    p = (log_p - log_choose(right + wrong, total)).exp().masked_fill(~possible, 0.0)
    own = p.gather(1, a.long()[:, None])
    return p.masked_fill(p > own * (1 + 1e-7), 0.0).sum(1).clamp(max=1)


def information_gain(a: Float[Tensor, " U"], b: Float[Tensor, " U"], n_right: float, n_wrong: float) -> Float[Tensor, " U"]:
    """What knowing whether an id occurs says about the outcome, in bits."""

    def entropy(first: Tensor, second: Tensor) -> Tensor:
        share = first / (first + second).clamp(min=1)
        return -(torch.xlogy(share, share) + torch.xlogy(1 - share, 1 - share)) / math.log(2)

    n = n_right + n_wrong
    occurs = (a + b) / n
    before = entropy(torch.full_like(a, n_right), torch.full_like(a, n_wrong))
    return before - occurs * entropy(a, b) - (1 - occurs) * entropy(n_right - a, n_wrong - b)
