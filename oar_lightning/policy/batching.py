"""Divides rows of different lengths into chunks with little padding."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence


def chunks_by_tokens(lengths: Sequence[int], token_budget: int, spread: int | None = None) -> Iterator[list[int]]:
    """Chunks of indices sorted by length, each of a padded size (count * longest) within the budget, or of one index.

    `spread`: the largest difference of two lengths in one chunk; None for no limit.
    """
    chunk: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        too_large = (len(chunk) + 1) * lengths[index] > token_budget
        too_different = spread is not None and bool(chunk) and lengths[index] - lengths[chunk[0]] > spread
        if chunk and (too_large or too_different):
            yield chunk
            chunk = []
        chunk.append(index)
    if chunk:
        yield chunk


def even_chunks(lengths: Sequence[int], most: int, token_budget: int | None = None) -> list[list[int]]:
    """At most `most` chunks of indices sorted by length, of nearly even padded size.

    With a budget, as few chunks as keep each within it; where `most` are too few for that, the even chunks.
    """
    if not lengths:
        return []
    budgets = range(len(lengths) * max(lengths) + 1)
    # the smallest budget that makes at most `most` chunks
    even = bisect_left(budgets, True, key=lambda budget: sum(1 for _ in chunks_by_tokens(lengths, budget)) <= most)
    return list(chunks_by_tokens(lengths, max(even, token_budget or 0)))
