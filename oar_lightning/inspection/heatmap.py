"""Renders a self-contained HTML page that shows which tokens got the credit.

The texts are in the page's markup, so that they are read without scripts and found by the browser's search. The numbers are
compact JSON beside them, from which `heatmap.js` shades the tokens.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oar_lightning.answers.span import Region
from oar_lightning.inspection.shades import ABOVE, BELOW, NOT_FINITE, Scale, make_scale

OPEN_TOKENS = 1500
"""A page of more tokens shows only its first completion unfolded."""

NOTHING = "."
"""In place of a shade: a token outside the scored reasoning, without score."""

HIDDEN = {*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF}
"""Characters that do not show or that reorder others: controls, separators, marks of direction."""


@dataclass(frozen=True)
class HeatmapToken:
    """One token of a completion with its numbers on the page; entropy in nats."""

    text: str
    region: Region
    score: float
    weight: float
    advantage: float
    entropy: float


@dataclass(frozen=True)
class HeatmapCompletion:
    """One completion of the page."""

    tokens: Sequence[HeatmapToken]
    reward: float
    advantage: float
    answer: str | None
    correct: bool | None
    """None: there is no gold answer to compare with."""


NUMBERS = ("weight", "score", "advantage", "entropy")
"""What the tokens can be shaded by."""


def render_heatmap(title: str, problem: str, gold: str, completions: Sequence[HeatmapCompletion]) -> str:
    """The page of one group of completions, as a string of HTML; also for the `srcdoc` of a frame.

    Tokens are shaded by weight (blue below 1, orange above), raw score, advantage or entropy. Scales are robust (`shades.py`);
    that of the scores is the completion's own, the others are the page's. All text is escaped; the page loads nothing.
    """
    unfold_all = sum(len(c.tokens) for c in completions) <= OPEN_TOKENS
    body = "\n".join(_completion(number, c, unfold_all or number == 1) for number, c in enumerate(completions, 1))
    scales = {name: _scale(name, [t for c in completions for t in c.tokens]) for name in NUMBERS}
    data = ",".join(_data(c.tokens, scales | {"score": _scale("score", c.tokens)}) for c in completions)
    choices = "\n".join(
        f'<label><input type="radio" name="shade" value="{name}"{" checked" * (name == NUMBERS[0])}> {name}</label>'
        for name in NUMBERS
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{_escape(title)}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<style>{_part("css")}</style></head><body>
<h1>{_escape(title)}</h1>
<div class="meta">Gold answer: <b>{_escape(gold)}</b></div>
<p class="problem">{_escape(problem)}</p>
<details class="meta"><summary>How to read and use this page</summary>
Colours: the numbers are in the legend of each completion. Framed with a triangle: beyond the scale, so that one token does not
pale all others. Grey: outside the scored reasoning, with weight 1. Bold and underlined: the answer.<br>
Strip: the whole completion; each place shows its strongest token, black (in the dark: white) where it is framed in the text;
the line below marks the answer. A click goes to the token.<br>
Keys, in a strip or a text: arrows, Home, End; n and p go to the next and the previous strong token; Enter in a strip opens the
text there; Esc hides the numbers.</details>
<div class="controls"><fieldset>{choices}</fieldset><button id="open">unfold all</button><button id="fold">fold all</button>
<button id="theme">light / dark</button></div>
<noscript><p class="meta">Without JavaScript the page shows texts only.</p></noscript>
{body}
<div id="tip" role="status"></div><script type="application/json" id="data">[{data}]</script>
<script>{_part("js")}</script></body></html>
"""


def _part(kind: str) -> str:
    return Path(__file__).with_name(f"heatmap.{kind}").read_text(encoding="utf-8")


def _completion(number: int, completion: HeatmapCompletion, unfolded: bool) -> str:
    kind, verdict = {None: ("", "no gold answer"), True: ("ok", "correct"), False: ("bad", "incorrect")}[completion.correct]
    answer = "none found" if completion.answer is None else completion.answer
    head = f"""<section class="{f"completion {kind}".strip()}"><h2>#{number} <span class="verdict">{verdict}</span>
&middot; answer {_escape(answer)} &middot; reward {completion.reward:.2f} &middot; advantage {completion.advantage:+.3f}</h2>"""
    count = len(completion.tokens)
    if not count:
        return f'{head}<div class="meta">no tokens</div></section>'
    text = "".join(_escape(token_text(token.text)) for token in completion.tokens)
    return f"""{head}<div class="legend"></div>
<div class="strip" tabindex="0" role="slider" aria-label="tokens of completion {number}" aria-valuemin="1"
aria-valuemax="{count}" aria-valuenow="1"><i></i></div>
<details{" open" if unfolded else ""}><summary>{count:,} token{"s" * (count > 1)}</summary>
<div class="tokens" tabindex="0" role="group" aria-label="text of completion {number}">{text}</div></details></section>"""


def _scale(name: str, tokens: Sequence[HeatmapToken]) -> Scale:
    """Weights: around 1, uneven, since they end at 0. Scores: of the reasoning, where there is any."""
    if name == "weight":
        return make_scale([token.weight for token in tokens], center=1.0, even=False)
    if name == "score":
        tokens = [token for token in tokens if token.region == Region.REASONING] or tokens
    return make_scale([getattr(token, name) for token in tokens])


def _data(tokens: Sequence[HeatmapToken], scales: dict[str, Scale]) -> str:
    """One completion's JSON: lengths of its tokens' texts in UTF-16 units, regions, and by name numbers, shades and legend."""
    values = {name: [getattr(token, name) for token in tokens] for name in NUMBERS}
    shades = {name: "".join(map(scales[name].shade, values[name])) for name in NUMBERS}
    outside = [token.region != Region.REASONING for token in tokens]
    for name, default in (("weight", 1.0), ("score", 0.0)):
        unscored = [out and value == default for out, value in zip(outside, values[name], strict=True)]
        shades[name] = "".join(NOTHING if skip else mark for mark, skip in zip(shades[name], unscored, strict=True))
    # numbers are written here, with no more digits than are read
    numbers = ",".join(f'"{name}":[{",".join(map(_number, values[name]))}]' for name in NUMBERS)
    lengths = ",".join(str(len(token_text(token.text).encode("utf-16-le")) // 2) for token in tokens)
    legends = {name: _legend(scales[name], values[name], shades[name]) for name in NUMBERS}
    regions = "".join(str(int(token.region)) for token in tokens)
    rest = json.dumps({"regions": regions, "shades": shades, "legends": legends}, separators=(",", ":"))
    return f'{{"lengths":[{lengths}],"numbers":{{{numbers}}},{rest[1:]}'.replace("<", "\\u003c")


def _legend(scale: Scale, values: Sequence[float], shades: str) -> dict[str, object]:
    """The number of each shade, how many tokens lie beyond the scale and the farthest, how many are not finite."""
    legend: dict[str, object] = {"levels": [(mark, f"{value:.3g}") for mark, value in scale.levels()]}
    for mark, farthest in ((BELOW, min), (ABOVE, max)):
        if mark in shades:
            beyond = [value for value, own in zip(values, shades, strict=True) if own == mark]
            legend[mark] = len(beyond), f"{farthest(beyond):.4g}"
    if NOT_FINITE in shades:
        legend[NOT_FINITE] = shades.count(NOT_FINITE)
    return legend


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else f'"{value}"'


def token_text(text: str) -> str:
    """A token as it is shown: a token without text (EOS) as a mark, a line break as a mark and a line break."""
    return visible(text).replace("\n", "↵\n") or "·"


def visible(text: str) -> str:
    """The text with hidden characters written out, but for tabs and line breaks: U+202E becomes ⟨202E⟩."""
    return "".join(
        "\ufffd" if 0xD800 <= ord(c) < 0xE000 else f"⟨{ord(c):04X}⟩" if ord(c) in HIDDEN and c not in "\t\n" else c
        for c in text
    )


def _escape(text: str) -> str:
    return html.escape(visible(text), quote=True)
