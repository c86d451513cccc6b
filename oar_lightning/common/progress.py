"""Progress on the console: a bar on a terminal; elsewhere a log line at least every ten seconds, whatever takes so long."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from oar_lightning.common.activity import describe_activity, in_words

log = logging.getLogger(__name__)

EVERY = 10.0
"""Seconds between two lines."""


def on_terminal() -> bool:
    return Console(stderr=True).is_terminal and Console().is_terminal


class LinesByTime:
    """Logs `line()` every `EVERY` seconds from a thread of its own, until it is stopped: also within a single long call."""

    def __init__(self, line: Callable[[], str]) -> None:
        self._line = line
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY):
            log.info("%s", self._line())


class Bar(Progress):
    """A bar and, below it, `words()`: what is done now and for how long."""

    def __init__(self, what: str, total: int | None, done: int, words: Callable[[], str]) -> None:
        self.words = words
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        super().__init__(*columns, console=Console(stderr=True), refresh_per_second=2)
        self.task: TaskID = self.add_task(what, total=total, completed=done)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if words := self.words():
            yield Text(words, overflow="fold")


class Pace:
    """How long work on `total` things still takes, at the pace since it was begun with `done` of them."""

    def __init__(self, total: int | None, done: int) -> None:
        self.total, self.first, self.done = total, done, done
        self.started = time.monotonic()

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def words(self) -> str:
        """What is done now, and the time left where it is known."""
        left = ""
        if self.total is not None and self.first < self.done < self.total:
            left = f"{in_words(self.elapsed() / (self.done - self.first) * (self.total - self.done))} left"
        return joined(describe_activity(), left)


def joined(*parts: str) -> str:
    """The parts that are not empty."""
    return " · ".join(filter(None, parts))


@contextlib.contextmanager
def counted_progress(what: str, unit: str, total: int | None, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show the progress of work on `total` things (None: not known), of which `done` exist already.

    Yields the function to call with how many more are done.
    """
    pace = Pace(total, done)

    def count() -> str:
        return f"{what}: {pace.done:,}{'' if total is None else f'/{total:,}'} {unit}"

    if on_terminal():
        with Bar(what, total, done, pace.words) as bar:

            def advance(more: int) -> None:
                pace.done += more
                bar.advance(bar.task, more)

            yield advance
        return

    def add(more: int) -> None:
        pace.done += more

    lines = LinesByTime(lambda: joined(count(), pace.words()))
    try:
        yield add
    finally:
        lines.stop()
    log.info("%s", joined(count(), in_words(pace.elapsed())))
