"""Credentials in overrides and addresses, which are not to reach logs, pages or tracking servers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

_KINDS = "auth|access|api|bearer|hf|hub|refresh"
_NAMES = (
    rf"(?:(?<![a-z_])token|(?<![a-z])(?:(?:{_KINDS})[_-]?token|(?:api|access|secret|private)[_-]?keys?"
    r"|secrets?|passw(?:or)?ds?|credentials?|authorization))"
)
"""`penalty_per_token` and `pad_token` are none."""
_SECRET = re.compile(rf"{_NAMES}$", re.IGNORECASE)
_INSIDE = re.compile(rf"({_NAMES}['\"]?\s*[:=]\s*)[^,}}&\s]+", re.IGNORECASE)
"""A key and its value within a mapping or the query of an address."""
_SET = re.compile(rf"({_NAMES}=)[^,;}}&\s]+", re.IGNORECASE)
_SENT = re.compile(r"\b(Bearer\s+)\S{8,}")
HIDDEN = "***"


def is_secret(key: str) -> bool:
    """Whether a dotted key, or one that it is below, is named like a secret."""
    return any(map(_SECRET.search, key.split(".")))


def without_credentials(text: str) -> str:
    """An override without the values of keys that are named like a secret, its own or inside of its value, tokens of the hub,
    and users in addresses."""
    key = text.partition("=")[0]
    if key != text and is_secret(key):
        return f"{key}={HIDDEN}"
    return in_words(_INSIDE.sub(rf"\1{HIDDEN}", text))


def in_words(text: str) -> str:
    """A text that is no override, such as a message, without credentials."""
    return without_users(re.sub(r"\bhf_\w{8,}", f"hf_{HIDDEN}", _SENT.sub(rf"\1{HIDDEN}", _SET.sub(rf"\1{HIDDEN}", text))))


def hidden(value: Any, key: str = "") -> Any:
    """What a config has at a key, as plain containers that may leave this machine: without what is at and below keys that are
    named like a secret, tokens of the hub, and credentials in addresses."""
    if value is None or isinstance(value, bool):
        return value
    if is_secret(key):
        return HIDDEN
    if isinstance(value, Mapping):
        return {name: hidden(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(item) for item in value]
    return in_words(value) if isinstance(value, str) else value


def without_users(text: str) -> str:
    """A text without the users and passwords of its addresses."""
    return re.sub(r"://[^/@\s]+@", "://", text)


def shown_words(words: Iterable[str]) -> str:
    """Words of a command as one line for a shell, without credentials."""
    return shlex.join(map(without_credentials, words))
