"""Renders a self-contained HTML page that shows which tokens got the credit; `heatmap.js` shades them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oar_lightning.answers.span import Region
from oar_lightning.inspection.page import document, escape, json_number, lengths, reader
from oar_lightning.inspection.shades import ABOVE, BELOW, NOT_FINITE, Scale, make_scale

OPEN_TOKENS = 1500
"""A page of more tokens shows only its first completion unfolded."""

NOTHING = "."
"""In place of a shade: a token outside the scored reasoning, without score."""


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
    advantage: float | None
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
    content = f"""<div class="meta">Gold answer: <b>{escape(gold)}</b></div>
<p class="problem">{escape(problem)}</p>
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
{body}"""
    return document(title, content, f"[{data}]", Path(__file__))


def _completion(number: int, completion: HeatmapCompletion, unfolded: bool) -> str:
    kind, verdict = {None: ("", "no gold answer"), True: ("ok", "correct"), False: ("bad", "incorrect")}[completion.correct]
    answer = "none found" if completion.answer is None else completion.answer
    head = f"""<section class="{f"completion {kind}".strip()}"><h2>#{number} <span class="verdict">{verdict}</span>
&middot; answer {escape(answer)} &middot; reward {_stated(completion.reward, ".2f")}
&middot; advantage {_stated(completion.advantage, "+.3f")}</h2>"""
    if not completion.tokens:
        return f'{head}<div class="meta">no tokens</div></section>'
    texts = [token.text for token in completion.tokens]
    return f'{head}<div class="legend"></div>\n{reader(number, texts, unfolded)}</section>'


def _stated(value: float | None, form: str) -> str:
    return "none" if value is None or math.isnan(value) else format(value, form)


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
    numbers = ",".join(f'"{name}":[{",".join(map(json_number, values[name]))}]' for name in NUMBERS)
    sizes = ",".join(map(str, lengths([token.text for token in tokens])))
    legends = {name: _legend(scales[name], values[name], shades[name]) for name in NUMBERS}
    regions = "".join(str(int(token.region)) for token in tokens)
    rest = json.dumps({"regions": regions, "shades": shades, "legends": legends}, separators=(",", ":"))
    return f'{{"lengths":[{sizes}],"numbers":{{{numbers}}},{rest[1:]}'


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
