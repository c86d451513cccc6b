"""The colour and the marker of each method, the same in all figures of all pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.colors import to_rgb

GREY = "#5b6570"
"""Of the baseline."""
PALETTE = ("#d9822b", "#4a67c8", "#2a9d6f", "#b5449a", "#8c6d31", "#c0392b", "#17a2b8", "#a08cf0", "#9ab52e")
"""Of what is no method of `STYLES`: settings, and methods of a user."""
LEAST_DISTANCE = 0.28
"""Between two colours of a figure, in RGB of 0 to 1, wherever one can be chosen."""


@dataclass(frozen=True)
class Style:
    color: str
    marker: str


STYLES = {
    "grpo": Style(GREY, "D"),
    "oracle": Style("#e08e0b", "*"),
    "oracle_results": Style("#8c5a00", "*"),
    "capo": Style("#c0392b", "*"),
    "oar_g": Style("#1f4fbf", "o"),
    "oar_p": Style("#5b9bff", "s"),
    "oar_p_approximate": Style("#1aa3d9", "D"),
    "oar_p_steps": Style("#8a7fd9", "v"),
    "shuffled": Style("#333333", "X"),
    "inverted": Style("#8f8f8f", "v"),
    "random": Style("#6a6a6a", "P"),
    "total_effect_fast": Style("#1b7837", "o"),
    "vineppo": Style("#5aae61", "s"),
    "information_gain": Style("#00998f", "D"),
    "entropy": Style("#b5449a", "o"),
    "eighty_twenty": Style("#d86fc0", "s"),
    "aer": Style("#7b3294", "^"),
    "acpo": Style("#9970ab", "D"),
    "acpo_add": Style("#c2a5cf", "v"),
    "shear": Style("#8c6d31", "o"),
    "curriculum": Style("#bf9b30", "s"),
    "action_mask": Style("#5c4400", "^"),
    "prime": Style("#17a2b8", "^"),
    "istar": Style("#0b6070", "v"),
    "spro": Style("#66c7d4", "<"),
    "rlsd": Style("#e7298a", "o"),
    "rlsd_contrast": Style("#f08cbf", "s"),
    "rlcsd": Style("#99004d", "^"),
    "serl": Style("#ff6a4d", "D"),
    "anchor_states": Style("#6b8e23", "o"),
    "gigpo": Style("#a9c25d", "s"),
    "turning_point": Style("#d5006d", "X"),
}
"""Experiment -> style. A star: is told what went wrong. Relatives have shades of one colour."""


def colors_of(names: Sequence[str | None], used: Iterable[str] = (GREY,)) -> list[str]:
    """A colour for each series by the name of its method: that of `STYLES` where it is a method of its own there, else one of
    the palette, in its order, that is far from those that others have. `used`: of the figure's other series."""
    own = [STYLES[name].color if name in STYLES and names.count(name) == 1 else None for name in names]
    taken = [*used, *filter(None, own)]
    chosen = []
    for color in own:
        if color is None:
            color = max((*PALETTE, GREY), key=lambda one: min(LEAST_DISTANCE, _distance(one, taken)))
            taken.append(color)
        chosen.append(color)
    return chosen


def _distance(color: str, others: Iterable[str]) -> float:
    """To the nearest of the others."""
    r, g, b = to_rgb(color)
    return min((((r - x) ** 2 + (g - y) ** 2 + (b - z) ** 2) ** 0.5 for x, y, z in map(to_rgb, others)), default=1.0)
