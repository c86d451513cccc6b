"""The heat-map page, read back by an HTML parser; what it does in a browser is a slow test."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from support.html_pages import ATTACKS, Page, assert_loads_nothing, opened

from oar_lightning.answers.span import Region
from oar_lightning.inspection.heatmap import HeatmapCompletion, HeatmapToken, render_heatmap


def token(text: str = "x", region: Region = Region.REASONING, score: float = 1.0, weight: float = 1.0) -> HeatmapToken:
    return HeatmapToken(text, region, score, weight, 0.5 * weight, 0.25)


def completion(tokens: list[HeatmapToken], answer: str | None = "5", correct: bool | None = True) -> HeatmapCompletion:
    return HeatmapCompletion(tokens, 1.0, 0.5, answer, correct)


def shades(page: Page, name: str, number: int = 0) -> str:
    return str(page.data[number]["shades"][name])


def page_of(*completions: list[HeatmapToken]) -> Page:
    return Page(render_heatmap("t", "p", "g", [completion(tokens) for tokens in completions]))


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
    assert_loads_nothing(render_heatmap("t", "p", "g", [completion([token()])]))


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
    assert shades(page_of(weights), "weight") == "adfhk"
    assert shades(page_of(weights, [token(weight=2.0)]), "weight", 1) == "h"
    scores, others = [token(score=s) for s in (0.0, 2.0, 4.0)], [token(score=s) for s in (0.05, 0.1)]
    page = page_of(scores, others)
    assert [shades(page, "score", i) for i in range(2)] == ["fhk", "hk"]
    assert page.data[1]["legends"]["score"]["levels"][-1] == ["k", "0.1"]


def test_tokens_outside_the_reasoning_have_no_shade() -> None:
    page = page_of([token(region=r, score=float(r == Region.REASONING), weight=1 + (r == 0)) for r in Region])
    assert page.data[0]["regions"] == "0123"
    assert [shades(page, name) for name in ("weight", "score")] == ["k...", "f..."]  # a single score has the flat scale


def test_an_outlier_is_marked_and_leaves_the_others_their_shades() -> None:
    scores = [0.001 * (i % 10) for i in range(99)]
    calm, loud = page_of([token(score=s) for s in scores]), page_of([token(score=s) for s in [*scores, 40.0]])
    assert shades(loud, "score") == shades(calm, "score") + ">"
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
    assert shades(page, "score") == "k?h"
    assert page.data[0]["legends"]["score"]["?"] == 1


@pytest.mark.parametrize("tokens", [[], [token()], [token(score=0.0)] * 3], ids=["none", "one", "scores 0"])
def test_small_completions(tokens: list[HeatmapToken]) -> None:
    page = page_of(tokens, [token()])
    assert len(page.data[0]["lengths"]) == len(tokens)
    assert set(shades(page, "weight") + shades(page, "score")) <= {"f"}
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


def opened_heatmap(browser: Any, completions: list[HeatmapCompletion], **options: Any) -> Any:
    return opened(browser, render_heatmap("t", "p", "g", completions), ".legend .ramp", **options)


@pytest.mark.slow
def test_in_a_browser_strips_and_keys_lead_to_the_tokens(browser: Any) -> None:
    scores = [0.001 * (i % 10) for i in range(1000)]
    scores[700] = 40.0
    long = completion([token(f" w{i}", score=s) for i, s in enumerate(scores)])
    with opened_heatmap(browser, [long, completion([]), long], viewport={"width": 800, "height": 600}) as (page, frame):
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
    with opened_heatmap(browser, long_texts(2, 50), color_scheme=scheme, viewport={"width": 360, "height": 700}) as (_, frame):
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
    with opened_heatmap(browser, [completion([token(a) for a in ATTACKS])]) as (_, frame):
        assert frame.locator(".t").all_text_contents() == [shown or attack for attack, shown in ATTACKS.items()]
