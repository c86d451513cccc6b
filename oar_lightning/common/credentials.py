"""Credentials in overrides and addresses, which are not to reach logs, pages or tracking servers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

SECRET = re.compile(r"(^|[._])(api_?key|token|secret|password|credentials?)$", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """An override without the value of a key that is named like a secret, tokens of the hub, and users in addresses."""
    key = text.partition("=")[0]
    if key != text and SECRET.search(key):
        return f"{key}=***"
    return without_users(re.sub(r"\bhf_\w{8,}", "hf_***", text))


def without_users(text: str) -> str:
    """A text without the users and passwords of its addresses."""
    return re.sub(r"://[^/@\s]+@", "://", text)


def shown_words(words: Iterable[str]) -> str:
    """Words of a command as one line for a shell, without credentials."""
    return shlex.join(map(without_credentials, words))
