"""Renders a self-contained HTML page that shows which tokens got the credit."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from oar_lightning.answers.span import Region


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


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c2126; }
h1 { font-size: 1.35rem; margin-bottom: .2rem; } .meta { color: #5b6570; }
.problem { background: #f4f6f8; border-radius: 6px; padding: .8rem 1rem; white-space: pre-wrap; }
.completion { border-left: 4px solid #9aa4ae; margin: 1.1rem 0; padding: .2rem 0 .2rem 1rem; }
.completion.ok { border-color: #2a9d5c; }
.completion.bad { border-color: #c8443c; }
.head { font-size: .85rem; color: #5b6570; margin-bottom: .3rem; }
.ok .verdict { color: #1d7a46; } .bad .verdict { color: #a9302a; }
.verdict { font-weight: 600; }
.tokens { font-family: ui-monospace, Menlo, Consolas, monospace; line-height: 2; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.t { padding: .18em 0; border-radius: 2px; cursor: default; } .t:hover { outline: 2px solid #1c2126; }
.t.r1, .t.r3 { color: #7a848e; } .t.r2 { font-weight: 700; border-bottom: 2px solid #1c2126; }
.by-score .t { background: var(--s); } .by-weight .t { background: var(--w); }
.scale { display: inline-block; width: 12rem; height: .8rem; border-radius: 3px; vertical-align: middle; }
fieldset { border: none; padding: 0; margin: .8rem 0; } label { margin-right: 1rem; }
#tip { position: fixed; display: none; background: #1c2126; color: #fff; font-size: .8rem; padding: .4rem .6rem;
  border-radius: 4px; white-space: pre; pointer-events: none;
  font-family: ui-monospace, Menlo, Consolas, monospace; z-index: 9; }
"""

_SCRIPT = """
const root = document.getElementById('groups'), tip = document.getElementById('tip');
for (const input of document.querySelectorAll('input[name=shade]'))
  input.addEventListener('change', () => { root.className = 'by-' + input.value; });
document.addEventListener('mousemove', event => {
  const text = event.target.dataset && event.target.dataset.tip;
  tip.style.display = text ? 'block' : 'none';
  if (!text) return;
  tip.textContent = text;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + 'px';
  tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + 'px';
});
"""


def render_heatmap(title: str, problem: str, gold: str, completions: Sequence[HeatmapCompletion]) -> str:
    """The page of one group of completions: tokens are shaded by weight or, with a switch, by raw score; numbers on hover.

    Weights: blue below 1, orange above. Scores: white to purple, relative to the completion's largest. All text is
    escaped; the page loads nothing.
    """
    top_weight = max((t.weight for c in completions for t in c.tokens), default=1.0)
    body = "\n".join(_completion(number, c, top_weight) for number, c in enumerate(completions, 1))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{_escape(title)}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<style>{_STYLE}</style></head><body>
<h1>{_escape(title)}</h1>
<div class="meta">Gold answer: <b>{_escape(gold)}</b>. Answer tokens are bold and underlined; grey tokens lie outside the scored
reasoning and keep weight 1.</div>
<p class="problem">{_escape(problem)}</p>
<fieldset><label><input type="radio" name="shade" value="weight" checked> weight
<span class="scale" style="background:linear-gradient(90deg,{_weight_color(0, 2)},#fff 33%,{_weight_color(2, 2)})"></span>
0 &rarr; 1 &rarr; {top_weight:.2f}</label>
<label><input type="radio" name="shade" value="score"> raw score
<span class="scale" style="background:linear-gradient(90deg,#fff,{_score_color(1)})"></span></label></fieldset>
<div id="groups" class="by-weight">{body}</div>
<div id="tip"></div><script>{_SCRIPT}</script></body></html>
"""


def _completion(number: int, completion: HeatmapCompletion, top_weight: float) -> str:
    kind, verdict = {None: ("", "no gold answer"), True: ("ok", "correct"), False: ("bad", "incorrect")}[completion.correct]
    answer = "none found" if completion.answer is None else completion.answer
    top_score = max((t.score for t in completion.tokens if math.isfinite(t.score)), default=0.0)
    tokens = "".join(_token(t, top_weight, top_score) for t in completion.tokens)
    return f"""<div class="{f"completion {kind}".strip()}"><div class="head">#{number}
<span class="verdict">{verdict}</span> &middot; answer {_escape(answer)} &middot; reward {completion.reward:.2f}
&middot; advantage {completion.advantage:+.3f}</div><div class="tokens">{tokens}</div></div>"""


def _token(token: HeatmapToken, top_weight: float, top_score: float) -> str:
    tip = "\n".join(
        (
            f"{token.text!r} ({token.region.name.lower()})",
            f"raw score  {token.score:.3e}",
            f"weight     {token.weight:.3f}",
            f"advantage  {token.advantage:+.3f}",
            f"entropy    {token.entropy:.3f} nats",
        )
    )
    score = token.score / top_score if top_score > 0 and not math.isnan(token.score) else 0.0
    # a token without text (EOS) is shown as a mark; a line break as a mark and a line break
    text = _escape(token.text or "·").replace("\n", "&#8629;\n")
    return (
        f'<span class="t r{int(token.region)}" style="--w:{_weight_color(token.weight, top_weight)};'
        f'--s:{_score_color(score)}" data-tip="{_escape(tip)}">{text}</span>'
    )


def _weight_color(weight: float, top: float) -> str:
    """Blue at 0, white at 1, orange at `top`."""
    if weight <= 1:
        return _mix((74, 134, 232), 1 - max(weight, 0.0))
    return _mix((240, 140, 40), min(1.0, (weight - 1) / max(top - 1, 1e-6)))


def _score_color(relative_score: float) -> str:
    """White at 0, purple at 1."""
    return _mix((126, 87, 194), min(max(relative_score, 0.0), 1.0))


def _mix(color: tuple[int, int, int], strength: float) -> str:
    return "#" + "".join(f"{round(255 + (c - 255) * strength):02x}" for c in color)


def _escape(text: str) -> str:
    return html.escape(text, quote=True)
