"""Which tokens overlap spans of the text, against the definition."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from oar_lightning.credit.located import Part, marked, overlaps

TEXT = "so 12 + 3 = 15."


@given(
    st.lists(st.tuples(st.integers(0, 14), st.integers(0, 5)), max_size=6),
    st.lists(st.integers(0, 15), max_size=8),
)
def test_a_token_has_the_characters_of_spans_that_are_its_own(starts: list[tuple[int, int]], cuts: list[int]) -> None:
    """Whatever the order of spans, which may overlap; some spans and tokens have no characters, as special tokens."""
    spans = [(start, min(start + length, 15)) for start, length in starts]
    tokens = list(itertools.pairwise([0, *sorted(cuts), 15]))
    inside = {place for start, end in spans for place in range(start, end)}
    for (first, last), parts in zip(tokens, overlaps(spans, tokens), strict=True):
        assert [place for part in parts for place in range(part.start, part.end)] == sorted(inside & set(range(first, last)))
        assert all(part.start < part.end for part in parts)


def test_spans_that_touch_are_two_and_a_blank_tells_where_one_begins() -> None:
    spans = [(3, 5), (6, 7), (8, 9), (10, 11), (12, 14)]  # 12 + 3 = 15
    tokens = [(0, 4), (4, 6), (6, 9), (9, 12), (12, 15)]
    found = list(overlaps(spans, tokens))
    assert found[0] == [Part(3, 4, begins=True)]
    assert found[1] == [Part(4, 5, begins=False)]
    assert [marked(TEXT, parts) for parts in found] == [" 1", "2", " + 3", " =", " 15"]
    assert list(overlaps([(0, 1), (1, 2)], [(0, 2)])) == [[Part(0, 1, begins=True), Part(1, 2, begins=True)]]
    assert list(overlaps([(0, 3), (1, 4)], [(1, 4)])) == [[Part(1, 4, begins=False)]], "overlapping ones are one"
