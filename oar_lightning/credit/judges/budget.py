"""What a run may spend on a judge."""

from __future__ import annotations

import math
from typing import Any

from oar_lightning.distributed.ranks import all_gather, rank


class Budget:
    """Calls and tokens of a run, over all ranks and all its starts; None for no limit.

    Each rank has an even share of what is left. Tokens are known after a call, so that calls under way may go beyond them.
    """

    def __init__(self, calls: int | None, tokens: int | None) -> None:
        self.limits = {"calls": calls, "tokens": tokens}
        self._before = dict.fromkeys(self.limits, 0)
        """Spent before this start."""
        self._own = dict.fromkeys(self.limits, 0)
        self._others = dict.fromkeys(self.limits, 0)
        self._left: dict[str, float] = dict.fromkeys(self.limits, 0.0)

    def share_out(self) -> None:
        """Give each rank its share of what is left. All ranks have to call it."""
        everyone = all_gather(self._own)
        if len(everyone) > 1:  # one that is alone for a moment goes by what it heard last
            self._others = {name: sum(own[name] for own in everyone) - self._own[name] for name in self.limits}
        for name, limit in self.limits.items():
            if limit is None:
                self._left[name] = math.inf
                continue
            left = max(0, limit - self._before[name] - self._own[name] - self._others[name])
            self._left[name] = left // len(everyone) + (rank() < left % len(everyone))

    @property
    def is_spent(self) -> bool:
        return min(self._left.values()) <= 0

    def take_call(self) -> bool:
        """Spend a call; False where nothing is left for it."""
        if self.is_spent:
            return False
        self._spend("calls", 1)
        return True

    def pay(self, tokens: int) -> None:
        self._spend("tokens", tokens)

    def _spend(self, name: str, amount: int) -> None:
        self._own[name] += amount
        self._left[name] -= amount

    def state_dict(self) -> dict[str, Any]:
        """What all ranks have spent; empty without limits. All ranks have to call it."""
        if all(limit is None for limit in self.limits.values()):
            return {}
        everyone = all_gather(self._own)
        return {name: self._before[name] + sum(own[name] for own in everyone) for name in self.limits}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What this start has spent already, to try the judge, stays counted."""
        self._before = {name: int(state.get(name, 0)) for name in self.limits}
