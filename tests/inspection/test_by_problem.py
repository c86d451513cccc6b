"""Groups of recorded completions against statistics of Python's library, and what becomes of every row."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest
import torch

from oar_lightning.common.config_check import ConfigError
from oar_lightning.inspection.by_problem import (
    advantages_by_problem,
    check_by_problem,
    group_by_problem,
    usable,
    windows,
)
from oar_lightning.inspection.recorded import EncodedCompletion, RecordedCompletion
from oar_lightning.objective.advantage import AdvantageConfig
from oar_lightning.types import MathProblem
from tests.support.toy import rollouts_of


def recorded(name: str, question: str = "q", problem: str = "p") -> RecordedCompletion:
    return RecordedCompletion(name, MathProblem(question, "1", id=problem), "x")


def test_completions_are_grouped_by_problem_in_order_of_first_appearance() -> None:
    """By its id and by its question: ids of two files may be the same."""
    rows = [recorded("0"), recorded("1", problem="p2"), recorded("2"), recorded("3", question="r"), recorded("4", problem="p2")]
    assert [[c.id for c in group] for group in group_by_problem(rows)] == [["0", "2"], ["1", "4"], ["3"]]
    assert group_by_problem([]) == []


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_windows_hold_whole_groups_in_their_order(size: int) -> None:
    groups = [[recorded(f"{i}.{j}") for j in range(n)] for i, n in enumerate((1, 4, 2, 1, 1, 3))]
    found = list(windows(groups, size))
    assert [group for window in found for group in window] == groups
    sizes = [[len(group) for group in window] for window in found]
    assert all(sum(window) >= size for window in sizes[:-1])
    assert all(sum(window[:-1]) < size for window in sizes), "a window is closed as soon as it is full"
    assert list(windows([], size)) == []


def test_every_row_is_used_or_counted() -> None:
    rows = [EncodedCompletion(recorded(str(n)), [1] * 3, [2] * n) for n in (0, 1, 4, 5, 9)]
    skipped: Counter[str] = Counter()
    assert usable(rows, 7, skipped, "lab") == rows[1:3]
    assert skipped == {
        "rows of more than 7 tokens (lab.max_tokens, or the policy's limit)": 2,
        "rows with an empty, truncated completion": 1,
    }
    assert usable(rows, None, Counter()) == rows[1:]


@pytest.mark.parametrize("scale", ["group", "none"])
def test_advantages_are_relative_to_the_completions_of_the_same_problem(scale: str) -> None:
    """Of problems of unlike sizes; a single completion has none, nor has a problem without a gold answer."""
    groups = [[1.0, 0.0, 0.0], [1.0], [float("nan")] * 2, [0.5, 0.5], [0.0, 1.0, 1.0, 0.25]]
    rewards = torch.tensor([reward for group in groups for reward in group])
    rollouts = rollouts_of([{"before": [1], "reasoning": [2]}] * len(rewards), reward_terms=rewards[:, None], rewards=rewards)
    config = AdvantageConfig(scale=scale)  # type: ignore[arg-type]
    found = advantages_by_problem(rollouts, [len(group) for group in groups], torch.tensor([1.0]), config)
    expected: list[float | None] = []
    for group in groups:
        if len(group) < 2 or group[0] != group[0]:
            expected += [None] * len(group)
        else:
            by = statistics.stdev(group) + 1e-4 if scale == "group" else 1.0
            expected += [(reward - statistics.mean(group)) / by for reward in group]
    assert [a is None for a in found] == [a is None for a in expected]
    assert [a for a in found if a is not None] == pytest.approx([a for a in expected if a is not None], abs=1e-5)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (AdvantageConfig(scale="batch"), "advantage.scale=batch"),
        (AdvantageConfig(aggregation="normalize_then_sum"), "advantage.aggregation=normalize_then_sum"),
    ],
)
def test_a_standard_deviation_of_the_batch_is_refused(config: AdvantageConfig, named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named} divides.*task=score.*; leave out"):
        check_by_problem(config, "score")
    check_by_problem(AdvantageConfig(), "score")


def test_a_share_of_a_run_that_there_is_not_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    check_by_problem(AdvantageConfig(), "lab")
    assert not caplog.messages
    check_by_problem(AdvantageConfig(confidence_from=0.6), "lab")
    assert caplog.messages[0].startswith("advantage.confidence_from=0.6: without effect, since task=lab has no steps")
