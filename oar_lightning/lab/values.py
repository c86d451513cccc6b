"""Values of prefixes: how often the policy succeeds from where a completion has come to, by sampled continuations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oar_lightning.common.randomness import derive_seed
from oar_lightning.common.wilson import wilson
from oar_lightning.lab.kept import KeptContinuations
from oar_lightning.types import Prefix, Rollouts

log = logging.getLogger(__name__)

UNIT = 64
"""Prefixes continued, and kept, at once."""


@dataclass(frozen=True)
class ValueConfig:
    """How prefixes are continued.

    Args:
        continuations: of each prefix at most.
        batch: continuations of a prefix between two looks at its interval.
        half_width: a prefix gets no more continuations when its 95 % interval is at most so far to either side.
        budget: continuations of all prefixes at most; None for no limit. Those that were kept from before count.
        seed: of the draws.
    """

    continuations: int = 16
    batch: int = 8
    half_width: float = 0.17
    budget: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("continuations", "batch", "budget"):
            value = getattr(self, key)
            if value is not None and value < (2 if key == "batch" else 1):
                raise ValueError(f"lab.{key} must be >= {2 if key == 'batch' else 1}, got {value}")
        if self.batch % 2 or self.continuations % self.batch:
            raise ValueError(
                f"lab.batch={self.batch} must be even (truth is estimated by halves) and divide lab.continuations="
                f"{self.continuations}; e.g. lab.batch=2 lab.continuations={max(2, self.continuations // 2 * 2)}"
            )
        if not 0 <= self.half_width < 1:
            raise ValueError(f"lab.half_width is of an interval for a share and must be in [0, 1), got {self.half_width}")

    @property
    def everywhere(self) -> int:
        """The continuations that every prefix gets."""
        return self.batch if self.half_width else self.continuations


class Spent(NamedTuple):
    """Continuations in all, and those of them that were sampled now."""

    continuations: int
    sampled: int


def half_width(rewards: NDArray[np.float64]) -> float:
    """Half of the width of Wilson's 95 % interval for the mean of rewards.

    Rewards between 0 and 1 vary less than those of 0 and 1, for which the interval holds. Where rewards leave [0, 1], the
    interval is that of their observed range.
    """
    low, high = min(0.0, rewards.min()), max(1.0, rewards.max())
    share = min(1.0, max(0.0, (rewards.mean() - low) / (high - low)))  # sums of floats may leave it by their last bit
    return float((high - low) * wilson(share, len(rewards))[1])


@dataclass(frozen=True)
class Sampler:
    """Continues prefixes in rounds: in each round every prefix whose interval is still wide gets one batch.

    A batch's draws depend on the prefix, its limit, the seed and the batch's number alone: how many batches there are, and
    what others get, changes none of them. What is sampled at once depends on what came before, not on what was kept, so that
    a lab that was killed goes on with the same numbers to the last bit.
    """

    continuations: KeptContinuations
    config: ValueConfig

    def batches(self, rollouts: Rollouts, prefixes: Iterable[Prefix]) -> int:
        """The most batches that the prefixes can take."""
        return len({self.continuations.identity(rollouts, prefix) for prefix in prefixes}) * self._rounds

    @property
    def _rounds(self) -> int:
        return self.config.continuations // self.config.batch

    def __call__(
        self, model: Any, rollouts: Rollouts, prefixes: Iterable[Prefix], advance: Callable[[int], None]
    ) -> tuple[Mapping[Prefix, NDArray[np.float64]], Spent, bool]:
        """The rewards of each prefix's continuations, none for a prefix that the budget did not reach; and whether the work
        was done to its end, not interrupted. Continuations to which no reward applies are left out, and told of.

        `advance` gets the number of batches that were drawn, found or are no longer needed.
        """
        same: dict[bytes, list[Prefix]] = {}
        for prefix in prefixes:
            same.setdefault(self.continuations.identity(rollouts, prefix), []).append(prefix)
        found: dict[bytes, list[NDArray[np.float64]]] = {key: [] for key in same}
        total = sampled = 0
        whole = True
        try:
            for number, unit in self._units(found, advance):
                left = len(unit) if self.config.budget is None else (self.config.budget - total) // self.config.batch
                unit = unit[: max(0, left)]
                seed = derive_seed(self.config.seed, "lab", number)
                drawn = self.continuations(model, rollouts, [same[key][0] for key in unit], self.config.batch, seed)
                for key, batch in zip(unit, drawn.rewards.double().cpu().numpy(), strict=True):
                    found[key].append(batch)
                total, sampled = total + len(unit) * self.config.batch, sampled + drawn.sampled
                advance(len(unit))
        except KeyboardInterrupt:
            whole = False
        rewards = {key: rewarded(parts) for key, parts in found.items()}
        if without := total - sum(map(len, rewards.values())):
            log.warning("lab: no reward applies to %d of %d continuations; values are means of the others", without, total)
        return {prefix: rewards[key] for key, owners in same.items() for prefix in owners}, Spent(total, sampled), whole

    def _units(
        self, found: Mapping[bytes, Sequence[NDArray[np.float64]]], advance: Callable[[int], None]
    ) -> Iterator[tuple[int, Sequence[bytes]]]:
        """The number of each round, and the prefixes that are continued at once in it."""
        for number in range(self._rounds):
            wide = [key for key, batches in found.items() if self._is_wide(batches, number)]
            advance(len(found) - len(wide))
            for start in range(0, len(wide), UNIT):
                yield number, wide[start : start + UNIT]

    def _is_wide(self, batches: Sequence[NDArray[np.float64]], number: int) -> bool:
        """Whether a prefix takes part in a round: it did so in all before, and its interval is still too wide."""
        if len(batches) < number:
            return False
        known = rewarded(batches)
        return not len(known) or half_width(known) > self.config.half_width


def rewarded(batches: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The rewards of all batches but NaN, which says that none applies."""
    joined = np.concatenate([np.zeros(0), *batches])
    return joined[~np.isnan(joined)]
