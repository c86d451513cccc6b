"""Agreement of one completion's scores with what is known of its tokens: pure functions of arrays [n], one entry a token.

Ties are broken in expectation: a score that is the same on all tokens gets what random scores get on average.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from oar_lightning.common.ranks import rank_correlation
from oar_lightning.common.shares import count_of

Scores = NDArray[np.float64]
Marks = NDArray[np.bool_]


def auroc(scores: Scores, wanted: Marks) -> float:
    """P(score of a wanted token > that of another) + P(equal) / 2; NaN without either kind."""
    positive, negative = scores[wanted], np.sort(scores[~wanted])
    if not len(positive) or not len(negative):
        return math.nan
    below, not_above = np.searchsorted(negative, positive, "left"), np.searchsorted(negative, positive, "right")
    return float((below + not_above).mean() / (2 * len(negative)))


def average_precision(scores: Scores, wanted: Marks) -> float:
    """Mean over the wanted tokens of the precision at their rank, expected over the orders of equal scores; NaN without any.

    That of random scores is above the base rate where tokens are few: `average_precision(constant, wanted)`.
    """
    if not wanted.any():
        return math.nan
    total = 0.0
    for above, hits, size, among in _levels(scores, wanted):
        place = np.arange(size)
        before = hits + 1 + place * ((among - 1) / max(1, size - 1))
        total += among / size * float((before / (above + place + 1)).sum())
    return total / int(wanted.sum())


def hits_at(scores: Scores, wanted: Marks, count: int) -> float:
    """The expected number of wanted tokens among the `count` with the largest scores."""
    found = 0.0
    for above, _, size, among in _levels(scores, wanted):
        found += among * min(max(count - above, 0), size) / size
    return found


def recall_at(scores: Scores, wanted: Marks, share: float = 0.1, normalized: bool = False) -> float:
    """The share of the wanted tokens within the `share` of all tokens with the largest scores, at least one token.

    `normalized`: relative to the most that fit there. NaN without wanted tokens.
    """
    count, of = count_of(share, len(scores)), int(wanted.sum())
    return hits_at(scores, wanted, count) / (min(count, of) if normalized else of) if of else math.nan


def r_precision(scores: Scores, wanted: Marks) -> float:
    """The share of wanted tokens among as many with the largest scores; NaN without any."""
    of = int(wanted.sum())
    return hits_at(scores, wanted, of) / of if of else math.nan


def hit_at_1(scores: Scores, wanted: Marks) -> float:
    """The probability that a token with the largest score is a wanted one; NaN without any."""
    return hits_at(scores, wanted, 1) if wanted.any() else math.nan


def reciprocal_rank(scores: Scores, wanted: Marks) -> float:
    """1 / rank of the first wanted token, expected over the orders of equal scores; NaN without any."""
    for above, _, size, among in _levels(scores, wanted):
        if not among:
            continue
        found, none_yet = 0.0, 1.0
        for place in range(size - among + 1):
            found += none_yet * among / (size - place) / (above + place + 1)
            none_yet *= 1 - among / (size - place)
        return found
    return math.nan


def spearman(scores: Scores, values: Scores) -> float:
    """The correlation of ranks, equal values with their mean rank: 0 where the scores are all the same, NaN where the values
    are."""
    if len(values) < 2 or (values == values[0]).all():
        return math.nan
    return rank_correlation(scores, values)


def sign_agreement(scores: Scores, values: Scores) -> float:
    """The share of tokens whose score has the sign of their value, a score of 0 counting half; NaN without values but 0."""
    told = values != 0
    if not told.any():
        return math.nan
    return float((1 + np.sign(scores[told]) * np.sign(values[told])).mean() / 2)


def _levels(scores: Scores, wanted: Marks) -> list[tuple[int, int, int, int]]:
    """The groups of equal scores, the largest first: tokens above, wanted ones above, tokens in it, wanted ones in it."""
    _, index, count = np.unique(-scores, return_inverse=True, return_counts=True)
    among = np.bincount(index, weights=wanted, minlength=len(count)).astype(int)
    above, hits = np.cumsum(count) - count, np.cumsum(among) - among
    return list(zip(above.tolist(), hits.tolist(), count.tolist(), among.tolist(), strict=True))
