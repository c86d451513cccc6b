"""Values of prefixes from continuations that are a known function of prefix, seed and place."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from support.toy import rollouts_of

from oar_lightning.lab import values
from oar_lightning.lab.kept import KeptContinuations
from oar_lightning.lab.store import Store
from oar_lightning.lab.values import Sampler, ValueConfig, half_width
from oar_lightning.types import Continued, Prefix, Rollouts

SEQUENCES = [
    {"before": [1, 2], "reasoning": [3, 4, 5, 6], "answer": [7]},
    {"before": [1, 2], "reasoning": [3, 1, 2, 5], "answer": [8]},
]
ROLLOUTS = rollouts_of(SEQUENCES)
ROLLOUTS = dataclasses.replace(ROLLOUTS, problems=(ROLLOUTS.problems[0],) * 2)
PREFIXES = [Prefix(row, column) for row in range(2) for column in range(2, 6)]


class Coins:
    """Continuations that succeed by chance, from 0 at the prefix's last token 1 to always at token 6. Counts what it draws."""

    def __init__(self, fails_after: int = 10**9) -> None:
        self.drawn: list[tuple[tuple[int, ...], int]] = []
        self.fails_after = fails_after

    def __call__(
        self, model: Any, rollouts: Rollouts, prefixes: Sequence[Prefix], samples: int, seed: int, greedy: bool = False
    ) -> Continued:
        rewards = torch.zeros(len(prefixes), samples)
        for i, (row, column) in enumerate(prefixes):
            ids = tuple(rollouts.token_ids[row, :column][rollouts.attention_mask[row, :column]].tolist())
            if len(self.drawn) >= self.fails_after:
                raise KeyboardInterrupt
            self.drawn.append((ids, seed))
            digest = hashlib.sha256(str((ids, seed)).encode()).digest()
            rewards[i] = torch.tensor([byte / 256 < (ids[-1] - 1) / 5 for byte in digest[:samples]]).float()
        return Continued(rewards, len(prefixes) * samples, 0)


def sampled(store: Store, coins: Coins, prefixes: Sequence[Prefix] = PREFIXES, rollouts: Rollouts = ROLLOUTS, **config: Any):
    settings = ValueConfig(**{"continuations": 16, "batch": 4, "half_width": 0.2} | config)
    return Sampler(KeptContinuations(coins, store, 5), settings)(None, rollouts, prefixes, lambda count: None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache.db", "me")


def test_the_interval_is_wilsons() -> None:
    for hits, n in ((0, 8), (3, 8), (8, 8), (20, 64)):
        rewards = np.arange(n) < hits
        interval = binomtest(hits, n).proportion_ci(method="wilson")
        assert half_width(rewards.astype(float)) == pytest.approx((interval.high - interval.low) / 2, abs=1e-6)
    assert half_width(np.array([0.0, 2.0])) == pytest.approx(2 * half_width(np.array([0.0, 1.0])))
    assert half_width(np.array([0.5, 0.5])) == half_width(np.array([0.0, 1.0])), "no smaller for rewards between"


def test_a_sure_prefix_gets_fewer(store: Store) -> None:
    found, spent, whole = sampled(store, Coins())
    counts = {prefix: len(rewards) for prefix, rewards in found.items()}
    for rewards in found.values():
        widths = [half_width(rewards[:n]) for n in range(4, len(rewards) + 1, 4)]
        assert all(width > 0.2 for width in widths[:-1])
        assert widths[-1] <= 0.2 or len(rewards) == 16
    assert min(counts.values()) < max(counts.values()) == 16
    assert whole
    distinct = {tuple(ROLLOUTS.token_ids[r, :c][ROLLOUTS.attention_mask[r, :c]].tolist()): n for (r, c), n in counts.items()}
    assert spent == (sum(distinct.values()), sum(distinct.values()))


def test_continuations_without_a_reward_count_in_no_mean(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    class SomeWithout(Coins):
        def __call__(self, *args: Any, **kwargs: Any) -> Continued:
            drawn = super().__call__(*args, **kwargs)
            drawn.rewards[:, 1] = torch.nan
            return drawn

    found, spent, _ = sampled(store, SomeWithout(), [Prefix(0, 4)], half_width=0.0)
    (rewards,) = found.values()
    assert (len(rewards), spent.continuations) == (12, 16)
    assert np.isfinite(rewards).all()
    assert "no reward applies to 4 of 16 continuations" in caplog.text


def test_draws_do_not_depend_on_what_others_get(store: Store, tmp_path: Path) -> None:
    together, _, _ = sampled(store, Coins())
    all_get_all, _, _ = sampled(Store(tmp_path / "other.db", "me"), Coins(), half_width=0.0)
    assert all(len(rewards) == 16 for rewards in all_get_all.values())
    for prefix, rewards in together.items():
        alone, _, _ = sampled(Store(tmp_path / f"{prefix}.db", "me"), Coins(), [prefix])
        np.testing.assert_array_equal(alone[prefix], rewards)
        np.testing.assert_array_equal(all_get_all[prefix][: len(rewards)], rewards)
    other_seed, _, _ = sampled(store, Coins(), seed=1)
    assert any(not np.array_equal(other_seed[p][:4], together[p][:4]) for p in PREFIXES)


def test_equal_prefixes_of_different_problems_are_judged_apart(store: Store) -> None:
    coins, problems = Coins(), (ROLLOUTS.problems[0], dataclasses.replace(ROLLOUTS.problems[1], answer="9"))
    sampled(store, coins, [Prefix(0, 4), Prefix(1, 4)], dataclasses.replace(ROLLOUTS, problems=problems), continuations=4)
    assert len(coins.drawn) == 2


class Room:
    """Continuations whose reward is how many tokens may follow, as its row's length or the limit of 3 says."""

    def __call__(
        self, model: Any, rollouts: Rollouts, prefixes: Sequence[Prefix], samples: int, seed: int, greedy: bool = False
    ) -> Continued:
        lengths = rollouts.response_mask.sum(1).tolist()
        rooms = [max(lengths[row], 3) - int(rollouts.response_mask[row, :column].sum()) for row, column in prefixes]
        return Continued(torch.tensor(rooms)[:, None].expand(-1, samples).float(), len(prefixes) * samples, 0)


@pytest.mark.parametrize("first", [0, 1])
def test_neighbouring_prefixes_are_continued_under_one_limit(first: int, store: Store) -> None:
    """Each token that is added leaves room for one less, also where it is the first that two recorded completions of different
    lengths do not share, whichever comes first, and whatever a lab of one of them alone has kept."""
    sequences = [
        {"before": [1, 2], "reasoning": [3, 4, 5], "answer": [6]},
        {"before": [1, 2], "reasoning": [3, 4, *range(6, 14)]},
    ]
    rollouts = rollouts_of(sequences[::-1] if first else sequences)
    rollouts = dataclasses.replace(rollouts, problems=(rollouts.problems[0],) * 2)
    prefixes = [Prefix(row, column) for row in range(2) for column in range(2, 2 + int(rollouts.response_mask[row].sum()))]
    sampler = Sampler(KeptContinuations(Room(), store, 3), ValueConfig(2, 2, 0.0))
    sampler(None, rollouts, prefixes[:1], lambda count: None)
    found, spent, _ = sampler(None, rollouts, prefixes, lambda count: None)
    rooms = [[found[p][0] for p in prefixes if p.row == row] for row in range(2)]
    expected = [[4.0, 3.0, 2.0, 1.0], [10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]]
    assert rooms == (expected[::-1] if first else expected)
    assert spent == (28, 26)


@pytest.mark.parametrize("at", [0, 1, 7, 12])
def test_interrupted_anywhere_nothing_is_drawn_twice(
    at: int, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "UNIT", 3)
    expected, spent, _ = sampled(Store(tmp_path / "whole.db", "me"), whole := Coins())
    first, _, done = sampled(store, interrupted := Coins(fails_after=at))
    assert not done
    assert all(len(first[p]) <= len(expected[p]) for p in PREFIXES)
    again, spent_again, done = sampled(store, rest := Coins())
    assert done
    for prefix in PREFIXES:
        np.testing.assert_array_equal(again[prefix], expected[prefix])
    assert spent_again.continuations == spent.continuations
    kept = len(whole.drawn) - len(rest.drawn)
    assert len(interrupted.drawn) - 3 < kept <= len(interrupted.drawn), "what an interrupted call had drawn is lost with it"
    third, spent_third, _ = sampled(store, none := Coins())
    assert not none.drawn
    assert spent_third == (spent.continuations, 0)
    assert all(np.array_equal(third[p], expected[p]) for p in PREFIXES)


def test_the_budget_bounds_all(store: Store) -> None:
    coins = Coins()
    found, spent, _ = sampled(store, coins, budget=30)
    assert spent.continuations == 4 * len(coins.drawn) == 28
    assert {len(rewards) for rewards in found.values()} <= {4, 8}, "each gets a first batch before any gets a second"
    few, spent, _ = sampled(store, Coins(), budget=8)
    assert spent == (8, 0)
    assert sum(len(rewards) > 0 for rewards in few.values()) in (2, 3, 4)


def test_settings_that_cannot_work() -> None:
    for settings, message in (
        ({"batch": 3}, r"lab\.batch=3 must be even"),
        ({"continuations": 12, "batch": 8}, r"lab\.batch=8 .* divide lab\.continuations=12"),
        ({"continuations": 3}, r"divide lab\.continuations=3; e\.g\. lab\.batch=2 lab\.continuations=2"),
        ({"budget": 0}, r"lab\.budget must be >= 1, got 0"),
        ({"half_width": 1.0}, r"lab\.half_width .* got 1\.0"),
    ):
        with pytest.raises(ValueError, match=message):
            ValueConfig(**settings)
