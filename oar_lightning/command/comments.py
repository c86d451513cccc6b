"""The comment that a config file begins with: the commands that use it, and what it is."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Header:
    """`# @package ...`, commands, and words, each where the file has them."""

    package: str | None
    commands: tuple[str, ...]
    words: str

    @classmethod
    def of(cls, path: Path) -> Header:
        comments = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
        lines = [line.lstrip("# ") for line in comments]
        package = next((line.split()[1] for line in lines if line.startswith("@package")), None)
        commands = tuple(line for line in lines if line.startswith("python -m"))
        return cls(package, commands, " ".join(line for line in lines if not line.startswith(("@package", "python -m"))))

    @property
    def sentence(self) -> str:
        """The first sentence. The period of an abbreviation such as `Dr.` ends none: a word of three letters precedes it."""
        return re.split(r"(?<=[\w)`]{3}\.) (?=[A-Z`])", self.words, maxsplit=1)[0]
