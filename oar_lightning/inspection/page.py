"""A self-contained HTML page about tokens: what the heat-map and the lab's page have in common.

Texts are in the page's markup, so that they are read without scripts and found by the browser's search. Numbers are compact
JSON beside them. `page.css` has the colours, `page.js` the way from token to token.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path

HIDDEN = {*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF}
HIDDEN |= {0xAD, 0x180E, 0x200B, *range(0x2060, 0x2065), *range(0xE0000, 0xE0080)}
"""Characters that do not show or that reorder others: controls, separators, marks of direction, spaces without width, tags.
(U+200D and U+FE0F, which join the signs of an emoji, stay.)"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def document(title: str, body: str, data: str, own: Path) -> str:
    """The page as a string of HTML that loads nothing; also for the `srcdoc` of a frame.

    `body` is HTML and comes before the scripts, `data` is JSON, `own` is a file that has a style (``.css``) and a script
    (``.js``) of its name beside it.
    """
    style, script = (_part(Path(__file__), kind) + _part(own, kind) for kind in ("css", "js"))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<style>{style}</style></head><body>
<h1>{escape(title)}</h1>
{body}
<div id="tip" role="status"></div><script type="application/json" id="data">{in_script(data)}</script>
<script>{script}</script></body></html>
"""


def reader(number: int, texts: Sequence[str], unfolded: bool) -> str:
    """A completion's strip, which `page.js` paints, and its text below, which can be folded."""
    count = len(texts)
    text = "".join(escape(token_text(text)) for text in texts)
    return f"""<div class="strip" tabindex="0" role="slider" aria-label="tokens of completion {number}" aria-valuemin="1"
aria-valuemax="{count}" aria-valuenow="1"><i></i></div>
<details{" open" if unfolded else ""}><summary>{count:,} token{"s" * (count > 1)}</summary>
<div class="tokens" tabindex="0" role="group" aria-label="text of completion {number}">{text}</div></details>"""


def lengths(texts: Sequence[str]) -> list[int]:
    """The lengths of tokens as they are shown, in UTF-16 units, by which `page.js` cuts the text."""
    return [len(token_text(text).encode("utf-16-le")) // 2 for text in texts]


def in_script(json: str) -> str:
    """JSON that cannot end the script it stands in."""
    return json.replace("<", "\\u003c")


def json_number(value: float) -> str:
    """JSON of a number, with no more digits than are read."""
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


def escape(text: str) -> str:
    return html.escape(visible(text), quote=True)


def _part(file: Path, kind: str) -> str:
    return file.with_suffix(f".{kind}").read_text(encoding="utf-8")
