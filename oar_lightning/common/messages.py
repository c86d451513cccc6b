"""The text of an error in one line."""

from __future__ import annotations


def one_line(error: BaseException) -> str:
    """All of an error's text; its class where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of an error's text, of at most 200 characters; its class where it has none."""
    return next(iter(str(error).strip().splitlines()), "")[:200] or type(error).__name__


def named_line(error: BaseException) -> str:
    """An error's class and the first line of its text."""
    line = first_line(error)
    return line if line == type(error).__name__ else f"{type(error).__name__}: {line}"
