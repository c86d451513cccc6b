"""The heat-map page, read back by an HTML parser; what it does in a browser is a slow test."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import oar_lightning.inspection.heatmap as heatmap
from oar_lightning.answers.span import Region
from oar_lightning.inspection.heatmap import HeatmapCompletion, HeatmapToken, render_heatmap
from oar_lightning.inspection.shades import SHADES

REFERENCES = {"src", "href", "action", "data", "poster", "srcset", "background", "formaction"}


class Page(HTMLParser):
    """What a browser would see: tags with attributes, text, the tokens' texts and the numbers of each completion."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.json = "", ""
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open, f"unclosed: {self._open}"
        self.data: list[dict[str, Any]] = json.loads(self.json)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br"):
            self._open.append(tag)
        if self.last.get("class") == "tokens":
            self.texts.append("")

    @property
    def last(self) -> dict[str, str | None]:
        return self.tags[-1][1] if self.tags else {}

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.text += data
        if self.last.get("class") == "tokens" and self._open[-1] == "div":
            self.texts[-1] += data
        if self.last.get("id") == "data" and self._open[-1] == "script":
            self.json += data

    def tokens(self, number: int = 0) -> list[str]:
        """The texts of a completion's tokens, cut as the page's script cuts them: in UTF-16 units."""
        units, out = self.texts[number].encode("utf-16-le"), []
        for length in self.data[number]["lengths"]:
            out.append(units[: 2 * length].decode("utf-16-le"))
            units = units[2 * length :]
        assert not units
        return out

    def shades(self, name: str, number: int = 0) -> str:
        return str(self.data[number]["shades"][name])


def token(text: str = "x", region: Region = Region.REASONING, score: float = 1.0, weight: float = 1.0) -> HeatmapToken:
    return HeatmapToken(text, region, score, weight, 0.5 * weight, 0.25)


def completion(tokens: list[HeatmapToken], answer: str | None = "5", correct: bool | None = True) -> HeatmapCompletion:
    return HeatmapCompletion(tokens, 1.0, 0.5, answer, correct)


def page_of(*completions: list[HeatmapToken]) -> Page:
    return Page(render_heatmap("t", "p", "g", [completion(tokens) for tokens in completions]))


ATTACKS = {
    "<script>alert(1)</script>": None,
    "</span><b>": None,
    '" onmouseover="alert(1)': None,
    "' onload='": None,
    "&lt;script&gt;": None,
    "-->": None,
    "]]>": None,
    "<!--": None,
    "</style></script>": None,
    "<img src=http://example.org/x>": None,
    "${alert(1)} `": None,
    "שלום 😀\ufffd": None,
    "\x00": "⟨0000⟩",
    "\u202etxet": "⟨202E⟩txet",
    "a\r\n": "a⟨000D⟩↵\n",
    "\x1b[31m\u2066\ufeff": "⟨001B⟩[31m⟨2066⟩⟨FEFF⟩",
    "\ud83d\udcaf": "\ufffd\ufffd",
    "": "·",
    ".\n": ".↵\n",
    "\t": None,
}
"""A token's text -> what is shown, where it differs."""


def test_text_cannot_become_markup() -> None:
    everything = "".join(ATTACKS)
    plain = page_of([token("x") for _ in ATTACKS])
    source = render_heatmap(everything, everything, everything, [completion([token(a) for a in ATTACKS], everything)])
    page = Page(source)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert [sorted(attributes) for _, attributes in page.tags] == [sorted(attributes) for _, attributes in plain.tags]
    assert page.tokens() == [shown or attack for attack, shown in ATTACKS.items()]
    assert source.encode("utf-8")  # no surrogate is left


def test_the_page_loads_nothing() -> None:
    source = render_heatmap("t", "p", "g", [completion([token()])])
    assert not re.search(r"https?:|//[a-z]|@import|url\(|fetch|XMLHttp|localStorage", source)
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
    assert page.data[0]["numbers"] == {"weight": [2.345], "score": [0.001234], "advantage": [-1.987], "entropy": [0.654]}
    for piece in ("Title", "What?", "GOLD", "answer 42", "reward 0.25", "advantage -0.847", "incorrect", "none found"):
        assert piece in page.text
    assert [a["class"] for tag, a in page.tags if tag == "section"] == ["completion bad", "completion ok"]


def test_shades_of_weights_are_the_pages_and_of_scores_the_completions_own() -> None:
    weights = [token(weight=w) for w in (0.0, 0.5, 1.0, 2.0, 3.0)]
    assert page_of(weights).shades("weight") == "adfhk"
    assert page_of(weights, [token(weight=2.0)]).shades("weight", 1) == "h"
    scores, others = [token(score=s) for s in (0.0, 2.0, 4.0)], [token(score=s) for s in (0.05, 0.1)]
    page = page_of(scores, others)
    assert [page.shades("score", i) for i in range(2)] == ["fhk", "hk"]
    assert page.data[1]["legends"]["score"]["levels"][-1] == ["k", "0.1"]


def test_tokens_outside_the_reasoning_have_no_shade() -> None:
    page = page_of([token(region=r, score=float(r == Region.REASONING), weight=1 + (r == 0)) for r in Region])
    assert page.data[0]["regions"] == "0123"
    assert [page.shades(name) for name in ("weight", "score")] == ["k...", "f..."]  # a single score has the flat scale


def test_an_outlier_is_marked_and_leaves_the_others_their_shades() -> None:
    scores = [0.001 * (i % 10) for i in range(99)]
    calm, loud = page_of([token(score=s) for s in scores]), page_of([token(score=s) for s in [*scores, 40.0]])
    assert loud.shades("score") == calm.shades("score") + ">"
    assert loud.data[0]["legends"]["score"][">"] == [1, "40"]
    assert loud.data[0]["numbers"]["score"][-1] == 40


def test_signed_scores_diverge() -> None:
    legend = page_of([token(score=s) for s in (-2.0, 0.0, 1.0)]).data[0]["legends"]["score"]
    assert legend["levels"][0] == ["a", "-2"]
    assert legend["levels"][5] == ["f", "0"]
    assert legend["levels"][-1] == ["k", "2"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_are_not_finite_are_shown_not_fatal(bad: float) -> None:
    """A scorer may fail on a row (its weights are then 1): the page must still be written."""
    page = page_of([token(score=2.0), token(score=bad), token(score=1.0)])
    assert page.data[0]["numbers"]["score"] == [2, str(bad), 1]
    assert page.shades("score") == "k?h"
    assert page.data[0]["legends"]["score"]["?"] == 1


@pytest.mark.parametrize("tokens", [[], [token()], [token(score=0.0)] * 3], ids=["none", "one", "scores 0"])
def test_small_completions(tokens: list[HeatmapToken]) -> None:
    page = page_of(tokens, [token()])
    assert len(page.data[0]["lengths"]) == len(tokens)
    assert set(page.shades("weight") + page.shades("score")) <= {"f"}
    assert page.text.count("no tokens") == (not tokens)


def test_no_completions() -> None:
    assert Page(render_heatmap("t", "p", "g", [])).data == []


def long_texts(completions: int = 8, tokens: int = 2000) -> list[HeatmapCompletion]:
    """Texts with the lengths of subword tokens, and numbers with all digits of a float."""
    draw = random.Random(0)
    words = re.findall(r" ?\w+|[^\w]", (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8"))
    pieces = [word[i : i + 5] for word in words for i in range(0, len(word), 5)]
    return [
        HeatmapCompletion(
            [
                HeatmapToken(
                    draw.choice(pieces),
                    Region.REASONING,
                    draw.lognormvariate(-7, 2),
                    w := draw.random() * 3,
                    -0.84 * w,
                    draw.random(),
                )
                for _ in range(tokens)
            ],
            *(1.0, 0.5, "5", True),
        )
        for _ in range(completions)
    ]


def test_long_texts_are_folded_and_take_less_than_a_megabyte() -> None:
    source = render_heatmap("t", "p", "g", long_texts())
    assert len(source.encode()) < 1e6
    folds = [a for tag, a in Page(source).tags if tag == "details" and a.get("class") != "meta"]
    assert ["open" in a for a in folds] == [True] + [False] * 7


def luminance(color: str) -> float:
    """Relative luminance (WCAG 2)."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return float(sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))


def contrast(first: str, second: str) -> float:
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_is_readable_on_every_colour(mode: int) -> None:
    style = Path(heatmap.__file__).with_suffix(".css").read_text(encoding="utf-8")
    colors = {name: both[mode] for name, *both in re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", style)}
    assert set(SHADES) <= set(colors)
    pairs = [("ink", shade) for shade in SHADES] + [("ink", "panel")]
    pairs += [(text, "page") for text in ("ink", "muted", "good", "bad", "focus")]
    assert min(contrast(colors[text], colors[ground]) for text, ground in pairs) >= 4.5
    assert colors["f"] == colors["page"]
    depth = [contrast(colors[shade], colors["page"]) for shade in SHADES]
    assert depth[:6] == sorted(depth[:6], reverse=True)
    assert depth[5:] == sorted(depth[5:])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextlib.contextmanager
def opened(browser: Any, completions: list[HeatmapCompletion], **options: Any) -> Iterator[tuple[Any, Any]]:
    """The page in a frame's `srcdoc`, as notebooks and MLflow show it: the outer page and the frame. It has no errors and
    loads nothing."""
    page, problems = browser.new_page(**options), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url))
    page.set_content("<iframe sandbox=allow-scripts style='width: 100%; height: 90vh; border: none'></iframe>")
    page.eval_on_selector("iframe", "(frame, source) => { frame.srcdoc = source }", render_heatmap("t", "p", "g", completions))
    frame = page.frames[-1]
    frame.wait_for_selector(".legend .ramp")
    yield page, frame
    page.close()
    assert not problems


@pytest.mark.slow
def test_in_a_browser_strips_and_keys_lead_to_the_tokens(browser: Any) -> None:
    scores = [0.001 * (i % 10) for i in range(1000)]
    scores[700] = 40.0
    long = completion([token(f" w{i}", score=s) for i, s in enumerate(scores)])
    with opened(browser, [long, completion([]), long], viewport={"width": 800, "height": 600}) as (page, frame):
        fold = frame.locator("details:not(.meta)").nth(1)
        assert fold.get_attribute("open") is None
        frame.check("input[value=score]")
        assert "1 above, largest 40" in frame.locator(".legend").first.inner_text()

        strip = frame.locator(".strip").nth(1)
        box = strip.bounding_box()
        strip.click(position={"x": 0.7005 * box["width"], "y": 5})
        assert fold.get_attribute("open") is not None
        current = frame.locator(".current")
        assert "w700" in current.inner_text()
        assert "score      40" in frame.locator("#tip").inner_text()
        assert 0 <= current.bounding_box()["y"] < 600

        page.keyboard.press("ArrowRight")
        assert "w701" in current.inner_text()
        page.keyboard.press("p")
        assert "w700" in current.inner_text()
        page.keyboard.press("Escape")
        assert not frame.locator("#tip").is_visible()
        frame.click("#fold")
        strip.focus()
        page.keyboard.press("Home")
        assert '1: " w0"' in frame.locator("#tip").inner_text()  # told without unfolding
        assert fold.get_attribute("open") is None
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        assert "w999" in current.inner_text()
        assert frame.evaluate("document.activeElement.className") == "tokens"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_it_follows_the_scheme_and_its_button(browser: Any, scheme: str) -> None:
    with opened(browser, long_texts(2, 50), color_scheme=scheme, viewport={"width": 360, "height": 700}) as (_, frame):
        grounds = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}
        ground = "getComputedStyle(document.body).backgroundColor"
        assert frame.evaluate(ground) == grounds.pop(scheme)
        frame.click("#theme")
        assert frame.evaluate(ground) == next(iter(grounds.values()))
        assert frame.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_in_a_browser_texts_are_there_without_scripts(browser: Any, tmp_path: Path) -> None:
    texts = [token(a) for a in ATTACKS]
    (tmp_path / "page.html").write_text(render_heatmap("t", "p", "g", [completion(texts)]), encoding="utf-8")
    page = browser.new_page(java_script_enabled=False)
    page.goto((tmp_path / "page.html").as_uri())
    assert page.locator(".tokens").text_content() == "".join(shown or attack for attack, shown in ATTACKS.items())
    page.close()


@pytest.mark.slow
def test_in_a_browser_tokens_are_cut_as_they_came(browser: Any) -> None:
    with opened(browser, [completion([token(a) for a in ATTACKS])]) as (_, frame):
        assert frame.locator(".t").all_text_contents() == [shown or attack for attack, shown in ATTACKS.items()]
