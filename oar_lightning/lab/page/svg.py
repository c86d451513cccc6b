"""Parts of figures in SVG, in the page's colours, so that they are light and dark with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from oar_lightning.inspection.page import escape

STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` on pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float) -> Axis:
        """An axis that holds all finite values, with some room beside them."""
        finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        room = 0.04 * (high - low) or 0.5 * abs(high) or 0.5
        return cls(low - room, high + room, start, end)

    def __call__(self, value: float) -> str:
        return f"{self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start):.1f}"

    def ticks(self, count: int = 4) -> list[float]:
        """Round numbers, about `count` of them."""
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * s for s in STEPS if power * s >= rough * (1 - 1e-9))
        first = math.ceil(self.low / step)
        return [i * step for i in range(first, math.floor(self.high / step) + 1)]


def text(x: float | str, y: float | str, words: str, style: str = "") -> str:
    return f'<text x="{x}" y="{y}"{f" class={chr(34)}{style}{chr(34)}" if style else ""}>{escape(words)}</text>'


def line(x1: float | str, y1: float | str, x2: float | str, y2: float | str, style: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{style}"/>'


def figure(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    """A drawing with its title, which is also read to those who do not see it."""
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg role="img" aria-label="{escape(title)}" viewBox="0 0 {width} '
        f'{height}" width="{width}" height="{height}">{"".join(parts)}</svg></figure>'
    )
