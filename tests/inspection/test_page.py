"""What pages about tokens have in common: colours that text is readable on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import oar_lightning.inspection.page as page
from oar_lightning.inspection.shades import SHADES


def luminance(color: str) -> float:
    """Relative luminance (WCAG 2)."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return float(sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))


def contrast(first: str, second: str) -> float:
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_what_does_not_show_is_written_out() -> None:
    hidden = "\u200b\u2060\u00ad\u180e\U000e0041\u202e\x1b"
    assert page.visible(hidden) == "".join(f"⟨{ord(c):04X}⟩" for c in hidden)
    assert page.visible("a\u200db\ufe0f") == "a\u200db\ufe0f", "these join the signs of an emoji"


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_is_readable_on_every_colour(mode: int) -> None:
    style = Path(page.__file__).with_suffix(".css").read_text(encoding="utf-8")
    colors = {name: both[mode] for name, *both in re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", style)}
    assert set(SHADES) <= set(colors)
    pairs = [("ink", shade) for shade in SHADES] + [("ink", "panel")]
    pairs += [(text, "page") for text in ("ink", "muted", "good", "bad", "focus")]
    assert min(contrast(colors[text], colors[ground]) for text, ground in pairs) >= 4.5
    assert colors["f"] == colors["page"]
    depth = [contrast(colors[shade], colors["page"]) for shade in SHADES]
    assert depth[:6] == sorted(depth[:6], reverse=True)
    assert depth[5:] == sorted(depth[5:])
