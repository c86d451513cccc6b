"""The factors of a study: keys that were varied between runs, their levels in order, and labels of combinations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from oar_lightning.common.overrides import DELETED, is_method, settings, short_names
from oar_lightning.reporting.runs import RunRecord

Level = float | str
"""A value of a factor; texts include null, true and false."""

ABSENT = "default"
"""The level of a run that does not have a key."""

EXACT = 2.0**53
"""Whole numbers below it are exact as floats; larger ones are levels as they were written."""

NEEDS_KEY = {"null", "true", "false", ABSENT, DELETED}
"""Levels that are shown with their key, because they mean nothing without it."""


def varied(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """Keys that have different values in the runs, in the order of their overrides.

    Swept keys come first. Other overrides count only where they differ between runs with equal swept keys: e.g. the learning
    rate, if two sweeps were started with different ones.
    """
    swept = _differing(runs, dict.fromkeys(key for run in runs for key in assignments(run)))
    arms: dict[tuple[Level, ...], list[RunRecord]] = {}
    for run in runs:
        arms.setdefault(tuple(level(run, key) for key in swept), []).append(run)
    given = dict.fromkeys(key for run in runs for key in overrides(run) if key not in swept)
    return (*swept, *dict.fromkeys(key for arm in arms.values() for key in _differing(arm, given)))


def _differing(runs: Sequence[RunRecord], keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(k for k in keys if is_method(k) and len({level(run, k) for run in runs}) > 1)


def assignments(run: RunRecord) -> dict[str, str]:
    """The settings that distinguish a run from others: the parameters that its sweep varied, else its Hydra overrides."""
    if "swept" in run.tags:
        swept = json.loads(run.tags["swept"])
        return {key.lstrip("+"): value if isinstance(value, str) else json.dumps(value) for key, value in swept.items()}
    return overrides(run)


def overrides(run: RunRecord) -> dict[str, str]:
    """All Hydra overrides of a run."""
    return settings(run.overrides)


def level(run: RunRecord, key: str) -> Level:
    """The run's value of a key, from its overrides, else its parameters or tags. Numbers that agree in 6 digits are one
    level, but for whole ones."""
    given = overrides(run) | assignments(run)
    text = given.get(key, run.params.get(key, run.tags.get(key, ABSENT)))
    try:
        number = float(written(float(text)))
    except ValueError:
        return {"None": "null", "True": "true", "False": "false"}.get(text, text)
    return number if abs(number) < EXACT else text  # nan equals nothing, not even itself


def ordered(levels: Iterable[Level]) -> list[Level]:
    """Distinct levels: numbers by value, then texts in order of appearance."""
    distinct = list(dict.fromkeys(levels))
    numbers = sorted(value for value in distinct if isinstance(value, float))
    return [*numbers, *(value for value in distinct if isinstance(value, str))]


def label(keys: Sequence[str], levels: Sequence[Level]) -> str:
    """A label such as `oar_g` or `tau=0.3 beta=2`: numbers, and texts of `NEEDS_KEY`, have their key before them. Keys that the
    runs do not have are left out, unless all are missing, and so are texts that were there before."""
    names = short_names(keys)
    pairs = list(zip(keys, levels, strict=True))
    present = [(key, value) for key, value in pairs if value != ABSENT]
    words = (
        value if isinstance(value, str) and value not in NEEDS_KEY else f"{names[key]}={show(value)}"
        for key, value in present or pairs
    )
    return " ".join(dict.fromkeys(words))


def full_label(keys: Sequence[str], levels: Sequence[Level]) -> str:
    """A label with every key, for arms whose short labels are the same."""
    names = short_names(keys)
    return " ".join(f"{names[key]}={show(value)}" for key, value in zip(keys, levels, strict=True))


def show(value: Level) -> str:
    return value if isinstance(value, str) else written(value, 4)


def written(number: float, digits: int = 6) -> str:
    """The number in so many digits, a whole one in all that it has: a date as a seed, `20260131`, is not `2.026e+07`."""
    return f"{number:.{16 if number.is_integer() else digits}g}"
