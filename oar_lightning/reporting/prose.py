"""Markers that separate hand-written text in generated pages, and generated text in hand-written pages; text in, text out."""

from __future__ import annotations

import re

from oar_lightning.common.config_check import ConfigError

BLOCK = re.compile(r"<!-- prose: ([\w-]+) -->\n(.*?)<!-- /prose -->", re.DOTALL)
MARKER = re.compile(r"<!-- (?:prose: .*?|/prose) -->")
GENERATED = re.compile(r"<!-- generated: studies -->\n.*?<!-- /generated -->", re.DOTALL)


def prose(name: str, text: str) -> str:
    """A block of hand-written text, which is kept when the page is written again."""
    return f"<!-- prose: {name} -->\n{text.strip()}\n<!-- /prose -->"


def read_prose(page: str, where: str) -> dict[str, str]:
    """Name -> text of the hand-written blocks of a page.

    Raises:
        ConfigError: where markers do not come in pairs or a name occurs twice, so that no text is lost by a mistake.
    """
    blocks = BLOCK.findall(page)
    names = [name for name, _ in blocks]
    if len(MARKER.findall(page)) != 2 * len(blocks):
        raise ConfigError(
            f"{where}: prose markers do not come in pairs; each block is <!-- prose: name -->, its text and <!-- /prose -->, "
            "each marker on a line of its own"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{where}: there are two prose blocks called {twice[0]}; give one another name")
    return {name: text.strip() for name, text in blocks}


def with_generated(page: str, text: str) -> str:
    """The page with its generated part replaced, or added at its end."""
    part = f"<!-- generated: studies -->\n{text.strip()}\n<!-- /generated -->"
    if GENERATED.search(page):
        return GENERATED.sub(lambda _: part, page, count=1)
    return f"{page.rstrip()}\n\n{part}\n".lstrip()
