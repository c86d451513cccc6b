"""A page of the system's Chromium, headless, driven by Playwright. Nothing is downloaded."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

FLAGS = (
    "--no-sandbox",  # containers seldom allow it; only pages of our own are opened
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",  # plots of many points are drawn by WebGL
    "--disable-dev-shm-usage",
)


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def open_page(executable: str, width: int = 1600, height: int = 1000, timeout_s: float = 60.0) -> Iterator[Page]:
    """A window with one page, whose calls wait at most `timeout_s` for what they are to find."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        try:
            page = browser.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(1000 * timeout_s)
            yield page
        finally:
            browser.close()


def value_of(page: Any, expression: str) -> Any:
    """The value of a JavaScript expression in a page or a frame, as soon as it is true."""
    return page.wait_for_function(expression).json_value()


def wait_for_text(page: Page, *texts: str) -> None:
    for text in texts:
        page.get_by_text(text).first.wait_for()


def wait_still(page: Page, timeout_s: float = 20.0) -> None:
    """Wait until the page looks the same twice, half a second apart: plots are drawn after their data are there."""
    before = b""
    for _ in range(int(2 * timeout_s)):
        now = page.screenshot()
        if now == before:
            return
        before = now
        page.wait_for_timeout(500)


def save_picture(page: Page, path: Path, height: int | None = None) -> None:
    """Take a picture of the window, or of its upper `height` pixels."""
    size = page.viewport_size
    assert size is not None, "open_page sets it"
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": size["width"], "height": height or size["height"]})
