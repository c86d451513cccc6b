"""What this process is doing now, for its progress lines: nested activities, each with how much of it is done.

Code that works for long says so here, whether or not anybody shows it. Times are seconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Activity:
    name: str
    total: int | None
    done: int = 0
    part: int = 0
    note: str = ""
    started: float = field(default_factory=lambda: time.monotonic())


_current: list[_Activity] = []


@contextlib.contextmanager
def activity(name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A block of work on `total` things; yields the function to call with how many more are done.

    Without a name it counts the parts of the activity around it.
    """
    own = _Activity(name, total)
    _current.append(own)

    def advance(count: int) -> None:
        own.done, own.part, own.note = own.done + count, 0, ""

    try:
        yield advance
    finally:
        _current.remove(own)  # not the last one where a generator with activities was left behind


def within(part: int, note: str = "") -> None:
    """Say how much of the innermost activity's next piece of work is done; forgotten when it advances."""
    if _current:
        _current[-1].part, _current[-1].note = part, note


def describe_activity() -> str:
    """The activities, the outer first: ``evaluation of chain 0/256 · rollout 40/256, token 12/80, 21 s``; "" for none.

    Seconds are those of the innermost activity with a name.
    """
    parts: list[str] = []
    seconds = 0.0
    for own in _current.copy():  # lines are made in another thread
        done = own.done + own.part
        count = f"{done:,}/{own.total:,}" if own.total is not None and own.total > 1 else ""
        words = ", ".join(filter(None, (count, own.note)))
        if own.name:
            seconds = time.monotonic() - own.started
            parts.append(f"{own.name} {words}".strip())
        elif parts and words:
            parts[-1] += f", {words}" if parts[-1][-1].isdigit() else f" {words}"
    if parts and seconds >= 1:
        parts[-1] += f", {in_words(seconds)}"
    return " · ".join(parts)


def in_words(seconds: float) -> str:
    """A duration with its two largest units: ``45 s``, ``12 min 5 s``, ``3 h 20 min``, ``2 d 4 h``."""
    whole = round(seconds)
    for size, unit, smaller, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{whole} s"
