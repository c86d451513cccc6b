"""The name of a run in MLflow: its experiment, what its command sets, its seed."""

from __future__ import annotations

from collections.abc import Sequence

from oar_lightning.common.credentials import without_credentials
from oar_lightning.common.overrides import DELETED, is_method, settings, short_names

LONGEST_VALUE, LONGEST = 24, 80
"""Characters of one value, and of all settings together."""


def run_name(experiment: str, overrides: Sequence[str], seed: object) -> str:
    """Such as ``oar_g tau=0.5 asides · seed 0``. A choice of a group (``+variant=asides``) is shown by its value alone."""
    given = {
        key: value
        for key, value in settings(map(without_credentials, overrides)).items()
        if is_method(key) and key != "experiment"
    }
    names = short_names(given)
    parts: list[str] = []
    for key, value in given.items():
        name = names[key]
        is_choice = "." not in key and value not in ("null", "true", "false", DELETED)
        parts.append(_shown(value) if is_choice and name == key else f"{name}={_shown(value)}")
    kept = len(parts)
    while len(" ".join(parts[:kept])) > LONGEST:
        kept -= 1
    more = [f"+{len(parts) - kept} more"] if kept < len(parts) else []
    return f"{' '.join([experiment, *parts[:kept], *more])} · seed {seed}"


def _shown(value: str) -> str:
    """A number in four digits, an integer in all; of a long text its end where it is a path, its beginning else."""
    try:
        return value if value.lstrip("-").isdecimal() else f"{float(value):.4g}"
    except ValueError:
        text = " ".join(value.split()).strip("'\"")
    if len(text) <= LONGEST_VALUE:
        return text
    return f"…{text[1 - LONGEST_VALUE :]}" if "/" in text else f"{text[: LONGEST_VALUE - 1]}…"
