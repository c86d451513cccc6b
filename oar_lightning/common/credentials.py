"""Credentials in overrides and addresses, which are not to reach logs, pages or tracking servers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

_NAMES = "api_?key|access_?key|(?<!(?:pad|eos|bos|unk|sep|cls)_)token|secret|password|credentials?"
SECRET = re.compile(rf"(^|[._+])({_NAMES})$", re.IGNORECASE)
_INSIDE = re.compile(rf"((?<![A-Za-z])(?:{_NAMES})['\"]?\s*[:=]\s*)[^,}}&\s]+", re.IGNORECASE)
"""A key and its value within a mapping or the query of an address."""
_QUERY = re.compile(rf"([?&](?:{_NAMES})=)[^&\s]+", re.IGNORECASE)
HIDDEN = "***"


def without_credentials(text: str) -> str:
    """An override without the values of keys that are named like a secret, its own or inside of its value, tokens of the hub,
    and users in addresses."""
    key = text.partition("=")[0]
    if key != text and SECRET.search(key):
        return f"{key}={HIDDEN}"
    return _bare(_INSIDE.sub(rf"\1{HIDDEN}", text))


def hidden(value: Any, key: str = "") -> Any:
    """What a config has at a key, as plain containers that may leave this machine: without the values of keys that are named
    like a secret, tokens of the hub, and credentials in addresses."""
    if isinstance(value, Mapping):
        return {name: hidden(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(item, key) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if SECRET.search(key):
        return HIDDEN
    return _bare(_QUERY.sub(rf"\1{HIDDEN}", value)) if isinstance(value, str) else value


def _bare(text: str) -> str:
    return without_users(re.sub(r"\bhf_\w{8,}", f"hf_{HIDDEN}", text))


def without_users(text: str) -> str:
    """A text without the users and passwords of its addresses."""
    return re.sub(r"://[^/@\s]+@", "://", text)


def shown_words(words: Iterable[str]) -> str:
    """Words of a command as one line for a shell, without credentials."""
    return shlex.join(map(without_credentials, words))
