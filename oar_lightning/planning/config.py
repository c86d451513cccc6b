"""Settings of a memory plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from oar_lightning.common.ranges import PositiveFloat, PositiveInt, ProperFraction, checked

Card = Literal["t4", "a10", "l4", "rtx_4090", "a100_40", "l40s", "a100_80", "h100", "h200"]

CARDS: dict[Card, float] = {
    "t4": 16.1,
    "a10": 24.1,
    "l4": 24.1,
    "rtx_4090": 25.7,
    "a100_40": 42.9,
    "l40s": 48.3,
    "a100_80": 85.8,
    "h100": 85.5,
    "h200": 150.7,
}
"""Memory of some cards as their driver reports it, in GB of 10^9 bytes."""

TRACED_TOKENS = 16384
"""The cost of a longer pass is extrapolated linearly from two passes of at most so many tokens."""
LEAST_BUDGET = 256
"""The smallest token budget that is proposed for a scorer."""


@checked("plan")
@dataclass(frozen=True)
class PlanConfig:
    """The device and the lengths that a plan assumes. GB are 10^9 bytes.

    Args:
        card_gb: memory of one device, a number of GB or one of `CARDS`.
        reserve: fraction of it that is kept free: for the driver's context, buffers of libraries, fragmentation.
        prompt_tokens: of the longest prompt; `data.max_prompt_tokens` counts where it is set.
        answer_tokens: of the longest final answer, where probes read.
    """

    card_gb: Annotated[PositiveFloat, "the memory in GB"] | Card = 80.0
    reserve: Annotated[ProperFraction, "a fraction"] = 0.1
    prompt_tokens: PositiveInt = 512
    answer_tokens: PositiveInt = 8

    @property
    def card_bytes(self) -> float:
        return 1e9 * (CARDS[self.card_gb] if isinstance(self.card_gb, str) else self.card_gb)

    @property
    def usable_bytes(self) -> float:
        return (1 - self.reserve) * self.card_bytes
