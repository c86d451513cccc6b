"""Pages read back by an HTML parser, and in a browser."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

REFERENCES = {"src", "href", "action", "data", "poster", "srcset", "background", "formaction"}


class Page(HTMLParser):
    """What a browser would see: tags with attributes, text, the tokens' texts and the numbers of each completion."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.json = "", ""
        self.texts: list[str] = []
        self._open: list[str] = []
        self._in_tokens = False
        self.feed(source)
        self.close()
        assert not self._open, f"unclosed: {self._open}"
        self.data: Any = json.loads(self.json)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br"):
            self._open.append(tag)
        if self.last.get("class") == "tokens":
            self.texts.append("")
            self._in_tokens = True

    @property
    def last(self) -> dict[str, str | None]:
        return self.tags[-1][1] if self.tags else {}

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self._in_tokens = False

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.text += data
        if self._in_tokens:
            self.texts[-1] += data
        if self.last.get("id") == "data" and self._open[-1] == "script":
            self.json += data

    def tokens(self, number: int = 0) -> list[str]:
        """The texts of a completion's tokens, cut as the page's script cuts them: in UTF-16 units."""
        completions = self.data if isinstance(self.data, list) else self.data["completions"]
        units, out = self.texts[number].encode("utf-16-le"), []
        for length in completions[number]["lengths"]:
            out.append(units[: 2 * length].decode("utf-16-le"))
            units = units[2 * length :]
        assert not units
        return out


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


def assert_loads_nothing(source: str) -> None:
    assert not re.search(r"https?:|//[a-z]|@import|url\(|fetch|XMLHttp|localStorage", source)
    page = Page(source)
    assert not [a for _, attributes in page.tags for a in attributes if a in REFERENCES]
    assert "link" not in [tag for tag, _ in page.tags]
    policy = [a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy
    assert "default-src 'none'" in str(policy[0])


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
def opened(browser: Any, source: str, ready: str, **options: Any) -> Iterator[tuple[Any, Any]]:
    """The page in a frame's `srcdoc`, as notebooks and MLflow show it: the outer page and the frame. It has no errors and
    loads nothing. `ready`: what is there once its script has run."""
    page, problems = browser.new_page(**options), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url))
    page.set_content("<iframe sandbox=allow-scripts style='width: 100%; height: 90vh; border: none'></iframe>")
    page.eval_on_selector("iframe", "(frame, source) => { frame.srcdoc = source }", source)
    frame = page.frames[-1]
    frame.wait_for_selector(ready)
    yield page, frame
    page.close()
    assert not problems
