"""Budgets that give way where memory runs out: what is repeated, in which parts, and when it ends with an error."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oar_lightning.policy import token_budget
from oar_lightning.policy.out_of_memory import OutOfMemory
from oar_lightning.policy.token_budget import TokenBudget, as_budget


def out() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@given(
    lengths=st.lists(st.integers(1, 20), max_size=30),
    room=st.integers(20, 200),
    start=st.none() | st.integers(1, 500),
)
def test_every_row_is_worked_on_once_in_passes_that_fit(lengths: list[int], room: int, start: int | None) -> None:
    budget = TokenBudget("update.token_budget", "auto", start)
    tried = []

    def work(chunk: list[int]) -> int:
        size = len(chunk) * max(lengths[i] for i in chunk)
        tried.append(size)
        if size > room:
            raise out()
        return size

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_budget, "free_memory", lambda: None)  # collecting garbage thousands of times is all that takes time
        done = list(budget.run_in_chunks(lengths, work))
    assert sorted(i for chunk, _ in done for i in chunk) == list(range(len(lengths)))
    assert all(size <= room for _, size in done)
    failures = [size for size in tried if size > room]
    assert failures == sorted(failures, reverse=True)
    assert all(later <= before // 2 for before, later in itertools.pairwise(failures))
    if failures:
        assert budget.tokens == failures[-1] // 2
        again = list(budget.run_in_chunks(lengths, work))  # nothing fails a second time
        assert [size for size in tried if size > room] == failures
        assert Counter(i for chunk, _ in again for i in chunk) == Counter(range(len(lengths)))
    else:
        assert budget.tokens == start


def test_passes_are_divided_as_given_until_one_fails() -> None:
    """A chunk that was handed over in order stays so; later ones are divided before they are tried."""
    budget = TokenBudget("rollout.token_budget", "auto")
    tried: list[list[int]] = []

    def work(chunk: list[int]) -> None:
        tried.append(chunk)
        if len(chunk) > 2:
            raise out()

    found = [chunk for chunk, _ in budget.run_in_chunks([5, 4, 5, 4, 5, 5, 5, 5], work, [[1, 0], [3, 2, 5, 4], [7, 6]])]
    assert tried == [[1, 0], [3, 2, 5, 4], [3, 2], [5, 4], [7, 6]]
    assert found == [[1, 0], [3, 2], [5, 4], [7, 6]]


def test_one_line_names_key_old_and_new_value(caplog: pytest.LogCaptureFixture) -> None:
    budget = TokenBudget("scorer.token_budget", "auto", 4096)
    failures = [out()]

    def work(chunk: list[int]) -> None:
        if failures:
            raise failures.pop()

    with caplog.at_level(logging.WARNING):
        list(budget.run_in_chunks([100] * 30, work))
    assert [record.getMessage() for record in caplog.records] == [
        "scorer.token_budget=auto: a pass of 30 rows and 3000 padded tokens did not fit into memory (CUDA out of memory. Tried "
        "to allocate 2.00 GiB.) and is repeated in parts; scorer.token_budget is lowered from 4096 to 1500 "
        "from now on"
    ]


def test_what_the_failed_pass_held_is_free_when_it_is_repeated() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def inner(tensor: torch.Tensor) -> None:
        cycle: list[Any] = [tensor]
        cycle.append(cycle)
        raise out()

    def work(chunk: list[int]) -> None:
        assert all(ref() is None for ref in held)
        tensor = torch.zeros(1000)
        if len(chunk) > 1:
            held.append(weakref.ref(tensor))
            inner(tensor)

    assert len(list(TokenBudget("update.token_budget", "auto").run_in_chunks([1] * 4, work))) == 4
    assert len(held) == 2


def failing(chunk: list[int]) -> None:
    raise out()


@pytest.mark.parametrize(
    ("given", "lengths", "message"),
    [
        (
            30,
            [10, 9, 8],
            r"update.token_budget=30: a pass of 3 rows and 30 padded tokens does not fit into memory \(CUDA out of memory.*\); "
            r"set update.token_budget=auto, which makes smaller passes where memory runs out, or update.token_budget=15",
        ),
        (None, [10, 9], r"update.token_budget=null: a pass of 2 rows and 20 .* set update.token_budget=auto"),
        ("auto", [10], r"update.token_budget=auto: a single row of 10 tokens does not .*; lower rollout.max_new_tokens, shard"),
        ("auto", [10, 10], r"update.token_budget=auto: a single row of 10 tokens does not"),
        (5, [7, 7], r"update.token_budget=5: a single row of 7 tokens does not .*policy.gradient_checkpointing=true"),
    ],
)
def test_what_cannot_be_helped_names_key_size_and_remedy(given: Any, lengths: list[int], message: str) -> None:
    with pytest.raises(OutOfMemory, match=message):
        list(TokenBudget("update.token_budget", given).run_in_chunks(lengths, failing))


def test_a_row_that_fails_inside_of_a_pass_divides_the_pass() -> None:
    """Budgets nest: where the inner passes cannot be smaller, the rows of the outer one are too many."""
    budget = TokenBudget("scorer.token_budget", "auto", 64)
    outer: list[list[int]] = []

    def inside(chunk: list[int], rows: int) -> int:
        if rows > 2:
            raise out()
        return len(chunk)

    def work(rows: list[int]) -> int:
        outer.append(rows)
        return sum(count for _, count in budget.run_in_chunks([1] * 8, lambda chunk: inside(chunk, len(rows))))

    assert [found for _, found in budget.run_in_chunks([8] * 4, work)] == [8] * len(outer[1:])
    assert max(map(len, outer[1:])) <= 2
    assert sorted(row for rows in outer[1:] for row in rows) == [0, 1, 2, 3]


def test_other_errors_pass() -> None:
    def wrong(chunk: list[int]) -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match=r"^shapes differ$"):
        list(TokenBudget("update.token_budget", "auto").run_in_chunks([1, 1], wrong))


@pytest.mark.parametrize("given", [0, -3, True])
def test_values_that_are_no_budget(given: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"rollout.token_budget is a number of tokens and must be .*>= 1, auto or null, got {given}"
    ):
        TokenBudget("rollout.token_budget", given)


def test_only_auto_takes_another_value() -> None:
    values: tuple[tuple[Any, int | None], ...] = (("auto", 7), (5, 5), (None, None))
    for value, expected in values:
        budget = as_budget("update.token_budget", value)
        assert as_budget("update.token_budget", budget) is budget
        budget.set_start(7)
        assert budget.tokens == expected
