"""The whole page: texts cannot become markup, it loads nothing; in a browser, strips lie along the text (slow)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.html_pages import ATTACKS, Page, assert_loads_nothing, opened
from support.lab_records import attacked, curve, record, renamed

from oar_lightning.lab.page.record import LabRecord
from oar_lightning.lab.page.render import render_page

EVIL = "</script><b onclick='x'>\x00\u202e"


def with_curves(found: LabRecord) -> LabRecord:
    return LabRecord({**found.results, "curves": {"a": curve(found.ranking, "removal")}}, found.rows)


def test_text_cannot_become_markup() -> None:
    plain = Page(render_page(with_curves(attacked(record(), ["x"] * len(ATTACKS)))))
    source = render_page(with_curves(renamed(attacked(record(), list(ATTACKS)), "strong", EVIL)))
    page = Page(source)
    assert sorted(tag for tag, _ in page.tags) == sorted(tag for tag, _ in plain.tags)
    assert [sorted(attributes) for _, attributes in page.tags] == [sorted(attributes) for _, attributes in plain.tags]
    shown = [shown or attack for attack, shown in ATTACKS.items()]
    assert shown in [page.tokens(i) for i in range(len(page.texts))]
    assert source.encode("utf-8")
    assert "\x00" not in source
    assert "\u202e" not in source


def test_the_page_loads_nothing() -> None:
    assert_loads_nothing(render_page(with_curves(record())))


def test_what_it_says() -> None:
    page = Page(render_page(record()))
    for piece in (
        "3 estimators",
        "8 completions of 4 problems (8 of 8 right)",
        "monte_carlo",
        "baseline",
        "gold 3",
        "question 3",
    ):
        assert piece in page.text, piece
    assert "stopped" not in page.text
    assert "stopped" in Page(render_page(LabRecord({**record().results, "whole": False}, record().rows))).text


def test_where_nothing_is_known_there_are_costs() -> None:
    found = record()
    for key in ("measures", "truths"):
        found.results[key].clear()
    for row in found.rows:
        row["truths"].clear()
    page = Page(render_page(LabRecord({**found.results, "headlines": [], "differences": []}, found.rows)))
    assert "there are costs only" in page.text
    assert "12,345.68" in page.text
    assert len(page.data["completions"]) == 8


def test_of_no_completions() -> None:
    found = record()
    source = render_page(LabRecord({**found.results, "completions": []}, []))
    assert Page(source).data["completions"] == []


def long_record(tokens: int = 2000) -> LabRecord:
    """The first completion is long; its last token is decisive."""
    found = attacked(record(), [f"w{i} " for i in range(tokens)])
    row = found.rows[0]
    row["truths"]["first_wrong_step"] |= {"known": [1] * tokens, "decisive": [0] * (tokens - 1) + [1]}
    row["truths"]["monte_carlo"]["decisive"] = [0] * tokens
    row["id"] = row["question"] = "long"
    return found


def test_a_long_completion_takes_less_than_a_megabyte() -> None:
    assert len(render_page(long_record()).encode()) < 1e6


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_in_a_browser_strips_lie_along_the_text(browser: Any, scheme: str, width: int) -> None:
    source = render_page(with_curves(long_record()))
    with opened(browser, source, ".gutter", color_scheme=scheme, viewport={"width": width, "height": 800}) as (page, frame):
        assert frame.evaluate("document.documentElement.scrollWidth <= innerWidth")
        section = frame.locator(".completion", has_text="2,000 tokens")
        if section.locator("details").get_attribute("open") is None:
            section.locator("summary").click()
        tokens = section.locator(".t")
        tokens.nth(1999).wait_for(state="attached")
        assert tokens.count() == 2000
        lines = section.evaluate("s => new Set([...s.querySelectorAll('.t')].map(t => t.getClientRects()[0].top)).size")
        frame.wait_for_function(
            "([s, n]) => Math.abs(s.querySelectorAll('.gutter').length - n) < 2", arg=[section.element_handle(), lines]
        )
        overlaps = """s => { const tops = new Map();
          for (const t of s.querySelectorAll('.t')) { const r = t.getClientRects()[0]; tops.set(r.top, r.bottom); }
          const all = [...tops].sort((a, b) => a[0] - b[0]);
          return all.some(([, bottom], i) => i + 1 < all.length && bottom > all[i + 1][0]); }"""
        assert not section.evaluate(overlaps), "the strips of a line end above the next one"

        section.locator(".strip").focus()
        page.keyboard.press("n")
        current = section.locator(".current")
        assert current.inner_text().strip() == "w1999"
        tip = frame.locator("#tip").inner_text()
        assert "first_wrong_step decisive" in tip
        assert "strong" in tip
        assert "weak" not in tip, "controls are not shown at first"
        frame.get_by_role("checkbox", name="weak").check()
        section.locator(".tokens").focus()
        page.keyboard.press("End")
        assert "weak" in frame.locator("#tip").inner_text()
        ink = {"light": "rgb(20, 24, 28)", "dark": "rgb(242, 245, 247)"}[scheme]
        assert ink in current.evaluate("t => getComputedStyle(t).background"), "the decisive token's strip"
        assert ink not in tokens.nth(5).evaluate("t => getComputedStyle(t).backgroundImage.split('linear')[1]")


@pytest.mark.slow
def test_in_a_browser_completions_are_sorted_by_what_is_chosen(browser: Any) -> None:
    found = record()
    with opened(browser, render_page(found), ".gutter") as (_, frame):
        for measure in (0, 1):
            frame.select_option("#measure", str(measure))
            for j, name in enumerate(found.ranking):
                frame.select_option("#by", str(j + 1))
                values = found.results["measures"][found.headlines[measure]]["values"][name]
                expected = sorted(range(8), key=lambda i: (values[i] is None, values[i]))
                shown = [int(text.split()[0]) for text in frame.locator("h3").all_inner_texts()]
                assert [values[i] for i in shown] == [values[i] for i in expected]


@pytest.mark.slow
def test_in_a_browser_attacks_are_cut_as_they_came(browser: Any) -> None:
    found = renamed(attacked(record(), list(ATTACKS)), "strong", EVIL)
    with opened(browser, render_page(found), ".gutter") as (_, frame):
        frame.click("#open")
        shown = [shown or attack for attack, shown in ATTACKS.items()]
        texts = frame.evaluate(
            "[...document.querySelectorAll('.tokens')].map(b => [...b.querySelectorAll('.t')].map(t => t.textContent))"
        )
        assert shown in texts


@pytest.mark.slow
def test_in_a_browser_texts_and_figures_are_there_without_scripts(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(render_page(attacked(record(), list(ATTACKS))), encoding="utf-8")
    page = browser.new_page(java_script_enabled=False)
    page.goto((tmp_path / "page.html").as_uri())
    shown = "".join(shown or attack for attack, shown in ATTACKS.items())
    assert shown in page.locator(".tokens").all_text_contents()
    assert page.locator("figure circle").count() > 10
    page.close()
