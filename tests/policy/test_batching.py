"""Buckets by length: complete, within their number, and as even as a search over all splits finds them."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from oar_lightning.policy.batching import even_chunks

lengths_of = st.lists(st.integers(1, 30), min_size=1, max_size=9)


def size(bucket: list[int], lengths: list[int]) -> int:
    return len(bucket) * max(lengths[i] for i in bucket)


def smallest_largest(lengths: list[int], buckets: int) -> int:
    """The best largest padded size of any split of the sorted rows."""
    order = sorted(lengths)
    best = len(order) * order[-1]
    for count in range(1, min(buckets, len(order)) + 1):
        for cuts in itertools.combinations(range(1, len(order)), count - 1):
            parts = [order[a:b] for a, b in itertools.pairwise((0, *cuts, len(order)))]
            best = min(best, max(len(part) * part[-1] for part in parts))
    return best


@given(lengths_of, st.integers(1, 5))
def test_buckets_are_even(lengths: list[int], buckets: int) -> None:
    found = even_chunks(lengths, buckets)
    assert sorted(i for bucket in found for i in bucket) == list(range(len(lengths)))
    assert len(found) <= buckets
    assert max(size(bucket, lengths) for bucket in found) == smallest_largest(lengths, buckets)


@given(lengths_of, st.integers(1, 5), st.integers(1, 100))
def test_a_budget_is_kept_with_as_few_buckets_as_can_be(lengths: list[int], buckets: int, budget: int) -> None:
    found = even_chunks(lengths, buckets, budget)
    largest = max(size(bucket, lengths) for bucket in found)
    assert largest <= max(budget, smallest_largest(lengths, buckets))
    if smallest_largest(lengths, len(found)) > budget or len(found) == 1:
        return
    assert smallest_largest(lengths, len(found) - 1) > budget


def test_nothing_has_no_bucket() -> None:
    assert even_chunks([], 4) == []
