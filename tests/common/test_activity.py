"""What a progress line says about the work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oar_lightning.common import activity as module
from oar_lightning.common.activity import activity, describe_activity, in_words, within
from oar_lightning.policy.token_budget import TokenBudget


def test_activities_are_told_from_the_outside_in() -> None:
    assert describe_activity() == ""
    with activity("evaluation of chain", 1024) as advance:
        advance(32)
        with activity("rollout"):
            assert describe_activity() == "evaluation of chain 32/1,024 · rollout"
            with activity("", 256) as inner:
                inner(40)
                within(3, "token 7/80")
                assert describe_activity() == "evaluation of chain 32/1,024 · rollout 43/256, token 7/80"
                inner(8)
                assert describe_activity() == "evaluation of chain 32/1,024 · rollout 48/256"
                with activity("", 9):
                    assert describe_activity() == "evaluation of chain 32/1,024 · rollout 48/256, 0/9"
    assert describe_activity() == ""
    within(3)


def test_it_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 100.0, 175.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))
    with activity("scoring"), activity("", 4):
        assert describe_activity() == "scoring 0/4, 2 min 55 s"


def test_errors_and_abandoned_generators_leave_nothing_behind() -> None:
    def work() -> Iterator[int]:
        with activity("abandoned"):
            yield 1

    left = work()
    next(left)
    with activity("goes on"):
        left.close()
        assert describe_activity() == "goes on"
    with pytest.raises(KeyError), activity("fails"):
        raise KeyError
    assert describe_activity() == ""


def test_passes_within_a_token_budget_count_their_rows() -> None:
    told = []
    with activity("scoring"):
        results = TokenBudget("k", 10).run_in_chunks([5] * 5, lambda chunk: describe_activity())
        told = [(before, describe_activity()) for _, before in results]
    assert told == [(f"scoring {n}/5", f"scoring {m}/5") for n, m in ((0, 2), (2, 4), (4, 5))]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (12000, "3 h 20 min"), (190000, "2 d 4 h")],
)
def test_durations(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
