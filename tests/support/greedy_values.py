"""Completions whose greedy values are known by their tokens, and scorers of turning points that ask for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from support.toy import rollouts_of, tools

from oar_lightning.credit.scorers import TurningPoint
from oar_lightning.credit.scorers.turning_point.deviations import Deviation
from oar_lightning.types import Continued, Prefix, Rollouts

PROMPT, LENGTH = [3, 4, 5], 8


class Greedy:
    """Values of prefixes by their tokens: 0 where one of them is in `bad` for that column, and what was asked."""

    def __init__(self, bad: dict[int, int], of_prompt: float = 1.0) -> None:
        self.bad, self.of_prompt = bad, of_prompt
        self.asked: list[list[Prefix]] = []

    def value(self, rollouts: Rollouts, row: int, column: int) -> float:
        first = int(rollouts.response_mask[row].long().argmax())
        ids = rollouts.token_ids[row, first:column].tolist()
        spoilt = any(ids[i : i + 1] == [token] for i, token in self.bad.items())
        return 1 - self.of_prompt if spoilt else self.of_prompt

    def __call__(
        self, model: Any, rollouts: Rollouts, prefixes: Sequence[Prefix], samples: int, seed: int, greedy: bool = False
    ) -> Continued:
        assert (samples, greedy) == (1, True)
        self.asked.append(list(prefixes))
        values = [[self.value(rollouts, *prefix)] for prefix in prefixes]
        return Continued(torch.tensor(values).view(-1, 1), len(values), 10 * len(values))


def drawn(greedy: Greedy, rows: int = 4, seed: int = 0, size: int = 4) -> Rollouts:
    """Completions of random tokens, with the rewards that `greedy` gives whole ones; groups with both kinds alone count."""
    rng = np.random.default_rng(seed)
    texts = rng.integers(6, 30, (rows, LENGTH)).tolist()
    rollouts = rollouts_of([{"before": PROMPT, "reasoning": t[:-1], "answer": t[-1:]} for t in texts], group_size=size)
    end = rollouts.token_ids.shape[1]
    rewards = torch.tensor([greedy.value(rollouts, row, end) for row in range(rows)])
    mean = rewards.view(-1, size).mean(1).repeat_interleave(size)
    return dataclasses.replace(rollouts, rewards=rewards, advantages=rewards - mean)


def spoiling(seed: int, rows: int, *places: int) -> dict[int, int]:
    """The token at each place of every second row, which spoils what comes after it."""
    texts = np.random.default_rng(seed).integers(6, 30, (rows, LENGTH))
    return {place: int(texts[2 * i + 1, place]) for i, place in enumerate(places)}


def made(greedy: Greedy, **knobs: Any) -> TurningPoint:
    scorer = TurningPoint(**{"siblings": False, **knobs})
    scorer.use(tools(greedy))
    return scorer


def of_gaps(*gaps: float) -> list[Deviation]:
    """One in three columns, each from a token of its own."""
    return [Deviation(3 * i + 1, i, gap) for i, gap in enumerate(gaps)]
