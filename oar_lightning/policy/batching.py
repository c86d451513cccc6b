"""Rows of different lengths into batches with little padding."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence


def chunks_by_tokens(lengths: Sequence[int], token_budget: int, spread: int | None = None) -> Iterator[list[int]]:
    """Indices sorted by length into chunks whose padded size (count * longest) is within the budget; at least one each.

    `spread`: how much longer the longest of a chunk may be than its shortest; None: as it comes.
    """
    chunk: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        apart = spread is not None and bool(chunk) and lengths[index] - lengths[chunk[0]] > spread
        if apart or (chunk and (len(chunk) + 1) * lengths[index] > token_budget):
            yield chunk
            chunk = []
        chunk.append(index)
    if chunk:
        yield chunk


def length_buckets(lengths: Sequence[int], buckets: int, token_budget: int | None = None) -> list[list[int]]:
    """Indices sorted by length into at most `buckets` chunks of nearly even padded size.

    With a budget, as few as keep each within it; where `buckets` are too few for that, the even ones.
    """
    if not lengths:
        return []
    whole = range(len(lengths) * max(lengths) + 1)
    even = bisect_left(whole, True, key=lambda budget: sum(1 for _ in chunks_by_tokens(lengths, budget)) <= buckets)
    return list(chunks_by_tokens(lengths, max(even, token_budget or 0)))
