"""Renders a lab's record as one HTML page; `render.js` paints the strips."""

from __future__ import annotations

from pathlib import Path

from oar_lightning.inspection.page import document, escape
from oar_lightning.lab.page.completions import chosen, data, sections
from oar_lightning.lab.page.curves import curve_plots
from oar_lightning.lab.page.dots import dot_plots
from oar_lightning.lab.page.record import LabRecord
from oar_lightning.lab.page.tables import all_measures, gradients_table, ranking_table, truths_table

HELP = """<details class="meta"><summary>How to read and use the strips</summary>
Above the text: the truths. Black (in the dark: white) are decisive tokens; where a truth knows sizes, orange tokens raise the
expected reward and blue ones lower it, and a bar marks the decisive ones. Nothing: not known.<br>
Below the text: the estimators. Each has a scale of its own in each completion: the deepest shade is its largest score there,
blue is negative. A bar marks what lies beyond the scale. By <i>place</i>, the deepest shade is the token with the largest
size, whatever the scores; that is what most measures see. Dotted: free tokens. Grey text: outside the reasoning.<br>
On top of a text all of it in one line; each place shows its strongest token. A click goes to the token.<br>
Keys, in an overview or a text: arrows, Home, End; n and p go to the next and the previous decisive token; Enter in an overview
opens the text there; Esc hides the numbers.</details>"""


def render_page(record: LabRecord) -> str:
    """The page as a string of HTML that loads nothing. All text is escaped."""
    rows = chosen(record)
    parts = [
        _part("Ranking", _about_ranking(record) + ranking_table(record)),
        _part("", dot_plots(record)),
        _part("Truths", truths_table(record)),
        _part("Curves", curve_plots(record)),
        _part("Gradients", gradients_table(record)),
        _part("All measures", all_measures(record)),
        _part("Completions", _completions(record, rows)),
    ]
    return document(_title(record), _summary(record) + "".join(parts), data(record, rows), Path(__file__))


def _part(title: str, content: str) -> str:
    heading = f"<h2 class='part'>{title}</h2>" if title else ""
    return heading + content if content else ""


def _title(record: LabRecord) -> str:
    return f"Credit lab: {len(record.ranking)} estimators"


def _summary(record: LabRecord) -> str:
    completions = record.results["completions"]
    verdicts = [c["correct"] for c in completions if c["correct"] is not None]
    right = f"{sum(verdicts)} of {len(verdicts)} right" if verdicts else "no gold answers"
    tokens = record.results["tokens"]
    facts = [
        f"{len(completions)} completions of {len({c['problem'] for c in completions})} problems ({right})",
        f"{tokens['reasoning']:,} reasoning tokens, {tokens['free']:,} of them free",
    ]
    if policy := (record.results.get("settings") or {}).get("policy", {}).get("name"):
        facts.insert(0, f"policy {policy}")
    missing = "".join(f'<p class="warning">{escape(sentence)}</p>' for sentence in record.missing)
    return f'<div class="meta">{escape(" · ".join(facts))}</div>{missing}'


def _about_ranking(record: LabRecord) -> str:
    if not record.headlines:
        return '<p class="warning">Nothing is known of these completions: there are costs only.</p>'
    baseline = escape(record.results["baseline"])
    return f"""<p class="meta">Means over completions, with 95 % intervals over problems below. The best that is no control is
bold. * differs from {baseline} by more than chance explains (p &lt; 0.05 by sign flips, Holm over the table). Behind a slash:
what an estimator as noisy as this one could reach with this truth. Dashed lines below: chance.</p>"""


def _completions(record: LabRecord, rows: list[int]) -> str:
    if not rows:
        return ""
    left = len(record.rows) - len(rows)
    note = f"The {len(rows)} most wrong of {len(record.rows)} completions; the others would make the page too large." * (
        left > 0
    )
    shades = "".join(
        f'<label><input type="radio" name="shade" value="{name}"{" checked" * (name == "score")}> {name}</label>'
        for name in ("score", "place", "advantage")
    )
    return f"""<p class="meta">{note}</p>{HELP}
<div class="controls"><fieldset><legend>Shade by</legend>{shades}</fieldset>
<label>most wrong first, by <select id="measure"></select></label> <label>of <select id="by"></select></label>
<button id="open">unfold all</button><button id="fold">fold all</button><button id="theme">light / dark</button></div>
<fieldset id="rows" class="controls"><legend>Strips</legend></fieldset>
<noscript><p class="meta">Without JavaScript the page shows texts only.</p></noscript>
<div id="completions">{sections(record, rows)}</div>"""
