r"""How an answer is put together: sides of an equation, members of a list, brackets, a choice's letter and its text."""

from __future__ import annotations

import re
from collections.abc import Callable

Pair = tuple[str, str]
Outcome = bool | Pair | None
"""A rule's decision (equal or not), the pair rewritten, or None where the rule does not apply."""

_EQUALS = re.compile(r"(?<![<>!:=])=(?!=)")
_LABEL = re.compile(r"(?:\\(?:text|textbf|mathbf|mathrm)\s*\{\s*)?\(([A-J])\)\s*\}?[.:]?\s*(.*)")
_BARE_LABEL = re.compile(r"([A-J])(?:\)\s*(?=\S)|(?:\.|(?<!A):)\s*(?=[\d\\(-]))(?!.*(?<![A-Za-z\\])[A-J][).:])(?!.*_)(.*)")
"""`B) 18` and `B. 18`, as models write them, but for lists of options and numbers in a base; `A:` begins an answer, too."""
_OTHER_LETTER = re.compile(
    r"\([A-J]\)|(?:[,/;]|\b(?:and|but|maybe|nor|not|or|perhaps)\b)[\s{}]*(?:\\text\w*\s*\{\s*)?(?:(?:and|maybe|not|or)\s+)?[A-J](?![A-Za-z0-9])"
)
"""Another choice behind a choice's letter."""


def _split(text: str, opening: str, closing: str, separates: Callable[[int], object]) -> list[str]:
    """The parts of a text between the characters outside of all brackets that separate."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in opening) - (character in closing)
        if depth == 0 and separates(index):
            parts.append(text[start:index].strip())
            start = index + 1
    return [*parts, text[start:].strip()]


def sides_of(text: str) -> list[str]:
    r"""What stands between the equality signs outside of all braces: that of `\sum_{i=1}^n i` is none."""
    return _split(text, "{", "}", lambda index: _EQUALS.match(text, index))


def split_top_level(text: str) -> list[str]:
    """The parts between those commas that are outside all brackets."""
    return _split(text, "([{", ")]}", lambda index: text[index] == ",")


def choice(text: str) -> tuple[str, str]:
    """`(B) 18` as (`B`, `18`); without a letter, or with several (`(B) or C`), ('', text)."""
    match = _LABEL.fullmatch(text) or _BARE_LABEL.fullmatch(text)
    return (match[1], match[2]) if match and not _OTHER_LETTER.search(match[2]) else ("", text)


def inside(text: str) -> str:
    """The text inside the surrounding brackets or braces."""
    return text[2:-2] if text.startswith("\\{") else text[1:-1]


def brackets(text: str) -> str:
    """The brackets around a whole text: both characters for an interval or a pair, `{` for a set, else ""."""
    braces = text.startswith("\\{") and text.endswith("\\}")
    if not braces and not (text[:1] in ("(", "[") and text[-1:] in (")", "]")):
        return ""
    depth = 0
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character in ")]}" and index < len(text) - 1:
            return ""  # (0,1) \cup (2,3)
    return "{" if braces else text[0] + text[-1]
