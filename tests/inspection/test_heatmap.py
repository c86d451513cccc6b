"""The heat-map page, read back by an HTML parser."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from oar_lightning.answers.span import Region
from oar_lightning.inspection.heatmap import HeatmapCompletion, HeatmapToken, render_heatmap

REFERENCES = {"src", "href", "action", "data", "poster", "srcset", "background", "formaction"}


class Page(HTMLParser):
    """What a browser would see: tags with attributes, and each token's text and data."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tokens: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open, f"unclosed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input"):
            self._open.append(tag)
        if "data-tip" in dict(attrs):
            self.tokens.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.text += data
        if self.tokens and self._open and self._open[-1] == "span" and self.tags[-1][1].get("data-tip"):
            attributes, text = self.tokens[-1]
            self.tokens[-1] = (attributes, text + data)


def token(text: str = "x", region: Region = Region.REASONING, score: float = 1.0, weight: float = 1.0) -> HeatmapToken:
    return HeatmapToken(text, region, score, weight, 0.5 * weight, 0.25)


def completion(tokens: list[HeatmapToken], answer: str | None = "5", correct: bool = True) -> HeatmapCompletion:
    return HeatmapCompletion(tokens, 1.0, 0.5, answer, correct)


def colors(attributes: dict[str, str | None]) -> tuple[str, str]:
    """Weight's and score's colour."""
    match = re.fullmatch(r"--w:(#[0-9a-f]{6});--s:(#[0-9a-f]{6})", attributes["style"] or "")
    assert match
    return match[1], match[2]


ATTACKS = [
    "<script>alert(1)</script>",
    "</span><b>",
    '" onmouseover="alert(1)',
    "' onload='",
    "&lt;script&gt;",
    "-->",
    "]]>",
    "<!--",
    "</style></script>",
    "\x00",
    "<img src=http://example.org/x>",
    "\u202e😀\ufffd",
]


def test_text_cannot_become_markup() -> None:
    plain = Page(render_heatmap("t", "p", "g", [completion([token("x") for _ in ATTACKS])]))
    page = Page(
        render_heatmap(
            "".join(ATTACKS), "".join(ATTACKS), ATTACKS[0], [completion([token(a) for a in ATTACKS], answer=ATTACKS[1])]
        )
    )
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert [sorted(attributes) for _, attributes in page.tags] == [sorted(attributes) for _, attributes in plain.tags]
    assert [text for _, text in page.tokens] == ATTACKS
    assert all(repr(a) in (attributes["data-tip"] or "") for a, (attributes, _) in zip(ATTACKS, page.tokens, strict=True))


def test_the_page_loads_nothing() -> None:
    source = render_heatmap("t", "p", "g", [completion([token()])])
    assert not re.search(r"https?:|//[a-z]|@import|url\(", source)
    page = Page(source)
    assert not [a for _, attributes in page.tags for a in attributes if a in REFERENCES]
    assert "link" not in [tag for tag, _ in page.tags]
    policy = [a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy
    assert "default-src 'none'" in str(policy[0])


def test_every_number_is_there() -> None:
    shown = HeatmapToken("7", Region.REASONING, 0.001234, 2.345, -1.987, 0.654)
    page = Page(
        render_heatmap(
            "Title", "What?", "GOLD", [HeatmapCompletion([shown], 0.25, -0.847, "42", False), completion([token()], None)]
        )
    )
    tip = page.tokens[0][0]["data-tip"] or ""
    for number in ("'7' (reasoning)", "1.234e-03", "2.345", "-1.987", "0.654"):
        assert number in tip
    for piece in ("Title", "What?", "GOLD", "answer 42", "reward 0.25", "advantage -0.847", "incorrect", "none found", "2.35"):
        assert piece in page.text
    classes = [a["class"] for tag, a in page.tags if tag == "div" and str(a.get("class")).startswith("completion")]
    assert classes == ["completion bad", "completion ok"]


def test_shades() -> None:
    weights = [token(weight=0.0), token(weight=0.5), token(weight=1.0), token(weight=2.0), token(weight=3.0)]
    shades = [colors(a)[0] for a, _ in Page(render_heatmap("t", "p", "g", [completion(weights)])).tokens]
    assert shades[2] == "#ffffff"
    assert len(set(shades)) == 5
    blue, orange = (int(shades[0][i : i + 2], 16) for i in (1, 5)), (int(shades[4][i : i + 2], 16) for i in (1, 5))
    assert next(blue) < next(blue)  # red < blue below 1
    assert next(orange) > next(orange)

    scores = [token(score=0.0), token(score=2.0), token(score=4.0)]
    other = [token(score=0.1)]  # relative to its own completion
    shades = [colors(a)[1] for a, _ in Page(render_heatmap("t", "p", "g", [completion(scores), completion(other)])).tokens]
    assert shades[0] == "#ffffff"
    assert len(set(shades)) == 3
    assert shades[3] == shades[2]


def test_regions_are_classes() -> None:
    page = Page(render_heatmap("t", "p", "g", [completion([token(region=r) for r in Region])]))
    assert [a["class"] for a, _ in page.tokens] == ["t r0", "t r1", "t r2", "t r3"]


@pytest.mark.parametrize("tokens", [[], [token()], [token(score=0.0)] * 3], ids=["none", "one", "scores 0"])
def test_small_completions(tokens: list[HeatmapToken]) -> None:
    page = Page(render_heatmap("t", "p", "g", [completion(tokens)]))
    assert len(page.tokens) == len(tokens)
    assert {colors(a)[0] for a, _ in page.tokens} <= {"#ffffff"}


def test_no_completions() -> None:
    assert Page(render_heatmap("t", "p", "g", [])).tokens == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_shown_not_fatal(bad: float) -> None:
    """A scorer may fail on a row (its weights are then 1): the page must still be written."""
    page = Page(render_heatmap("t", "p", "g", [completion([token(score=2.0), token(score=bad), token(score=1.0)])]))
    assert str(bad) in (page.tokens[1][0]["data-tip"] or "")
    assert colors(page.tokens[0][0])[1] != colors(page.tokens[2][0])[1]


def test_line_breaks_show_and_break() -> None:
    page = Page(render_heatmap("t", "p", "g", [completion([token(".\n"), token("So")])]))
    assert page.tokens[0][1] == ".↵\n"
