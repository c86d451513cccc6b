"""The texts of the repository, and the commands in them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
TEXTS = [*PAGES, ROOT / "CHANGELOG.md", *sorted((ROOT / "reports").rglob("README.md"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def code_blocks(text: str) -> list[str]:
    """The blocks of code, but for Python's."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [block for language, block in found if language != "python"]


def commands(text: str) -> list[list[str]]:
    """The arguments of each `python -m oar_lightning` in code blocks and `inline`, by whatever launcher it is started."""
    lines = [line for block in map(_filled_in, code_blocks(text)) for line in block.splitlines() if " oar_lightning" in line]
    lines += re.findall(r"`(python -m oar_lightning[^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    words = [shlex.split(line, comments=True) for line in lines]
    found = [line[line.index("oar_lightning") + 1 :] for line in words if "oar_lightning" in line]
    return [arguments for arguments in found if "task=..." not in arguments]


def _filled_in(block: str) -> str:
    """Continued lines as one, variables that the block sets by their values."""
    block = block.replace("\\\n", " ")
    for name, value in re.findall(r'^(\w+)="(.*)"$', block, re.MULTILINE):
        block = block.replace(f"${name}", value)
    return block
