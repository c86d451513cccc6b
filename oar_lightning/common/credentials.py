"""Credentials in overrides and addresses, which are not to reach logs, pages or tracking servers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_NAMES = "api_?key|access_?key|token|secret|password|credentials?"
SECRET = re.compile(rf"(^|[._+])({_NAMES})$", re.IGNORECASE)
_INSIDE = re.compile(rf"((?<![A-Za-z])(?:{_NAMES})['\"]?\s*[:=]\s*)[^,}}&\s]+", re.IGNORECASE)
"""A key and its value within a mapping or the query of an address."""


def without_credentials(text: str) -> str:
    """An override without the values of keys that are named like a secret, its own or inside of its value, tokens of the hub,
    and users in addresses."""
    key = text.partition("=")[0]
    if key != text and SECRET.search(key):
        return f"{key}=***"
    return without_users(re.sub(r"\bhf_\w{8,}", "hf_***", _INSIDE.sub(r"\1***", text)))


def without_users(text: str) -> str:
    """A text without the users and passwords of its addresses."""
    return re.sub(r"://[^/@\s]+@", "://", text)


def shown_words(words: Iterable[str]) -> str:
    """Words of a command as one line for a shell, without credentials."""
    return shlex.join(map(without_credentials, words))
