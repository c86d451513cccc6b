"""Settings of a memory plan."""

from __future__ import annotations

from dataclasses import dataclass

CARDS = {
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


@dataclass(frozen=True)
class PlanConfig:
    """The device and the lengths that a plan assumes. GB are 10^9 bytes.

    Args:
        card_gb: memory of one device, a number of GB or one of `CARDS`.
        reserve: fraction of it that is kept free: for the driver's context, buffers of libraries, fragmentation.
        prompt_tokens: of the longest prompt; `data.max_prompt_tokens` counts where it is set.
        answer_tokens: of the longest final answer, where probes read.
    """

    card_gb: float | str = 80.0
    reserve: float = 0.1
    prompt_tokens: int = 512
    answer_tokens: int = 8

    def __post_init__(self) -> None:
        if isinstance(self.card_gb, str) and self.card_gb not in CARDS:
            raise ValueError(f"plan.card_gb must be a number of GB or one of {', '.join(CARDS)}, got {self.card_gb}")
        if not isinstance(self.card_gb, str) and self.card_gb <= 0:
            raise ValueError(f"plan.card_gb must be > 0, got {self.card_gb}")
        if not 0 <= self.reserve < 1:
            raise ValueError(f"plan.reserve is a fraction and must be in [0, 1), got {self.reserve}")
        for key in ("prompt_tokens", "answer_tokens"):
            if getattr(self, key) < 1:
                raise ValueError(f"plan.{key} must be >= 1, got {getattr(self, key)}")

    @property
    def card_bytes(self) -> float:
        return 1e9 * (CARDS[self.card_gb] if isinstance(self.card_gb, str) else self.card_gb)

    @property
    def usable_bytes(self) -> float:
        return (1 - self.reserve) * self.card_bytes
