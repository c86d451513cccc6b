"""A reward, a scorer and an optimizer that fail on one rank: the reward at its third call, the others at their second.

BREAKING_RANK is the rank; BREAKING_HOW is `kill`, or `raise` for an error.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from oar_lightning.credit.scorers import Uniform

calls: Counter[str] = Counter()


def may_break(what: str, after: int) -> None:
    calls[what] += 1
    if calls[what] > after and os.environ.get("LOCAL_RANK", "0") == os.environ["BREAKING_RANK"]:
        if os.environ["BREAKING_HOW"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ArithmeticError("broken on purpose")


def breaking(problems: Sequence[Any], completions: Sequence[Any]) -> list[float]:
    may_break("reward", 2)
    return [1.0 for _ in completions]


def varied(problems: Sequence[Any], completions: Sequence[Any]) -> list[float]:
    return [float(sum(map(ord, c.text)) % 3) for c in completions]


class BreakingScorer(Uniform):
    def __call__(self, model: Any, rollouts: Any) -> torch.Tensor:
        may_break("scorer", 1)
        return super().__call__(model, rollouts)


class BreakingAdamW(torch.optim.AdamW):
    def step(self, closure: Any = None) -> Any:
        may_break("optimizer", 1)
        return super().step(closure)
