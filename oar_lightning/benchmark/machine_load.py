"""Whether anything else used the machine during a step, and steps that are made again if so."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

log = logging.getLogger(__name__)

QUIET = 0.1
"""The largest share of the cores that anything else may use during a step that counts."""

LOOK_SECONDS = 1.0
"""For so long the machine is looked at to see whether it is quiet."""

T = TypeVar("T")


def is_quiet(others: float | None) -> bool:
    """`others`: the share of the cores that anything else used during a step; None: not known here."""
    return others is None or others <= QUIET


class _Process(NamedTuple):
    parent: int
    ticks: int


class Load:
    """What share of the machine's cores anything but a process and its descendants uses, from now on.

    What a hypervisor takes counts as use by others.
    """

    def __init__(self, process: int) -> None:
        self.process = process
        self.begin = self._read()

    def others(self) -> float | None:
        """The share, in [0, 1]; None outside Linux."""
        end = self._read()
        if self.begin is None or end is None:
            return None
        (began, busy, own), (ended, busy_now, own_now) = self.begin, end
        return max(0.0, (busy_now - busy) - (own_now - own)) / ((ended - began) * (os.cpu_count() or 1))

    def _read(self) -> tuple[float, float, float] | None:
        """Now, and seconds of processor time so far: all (with what a hypervisor took), and the own processes'."""
        try:
            first = Path("/proc/stat").read_text().splitlines()[0].split()
        except OSError:
            return None
        user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, first[1:9])
        ticks = os.sysconf("SC_CLK_TCK")
        return time.monotonic(), (user + nice + system + irq + softirq + steal) / ticks, self._own() / ticks

    def _own(self) -> int:
        processes: dict[int, _Process] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it ended
                fields = path.read_text().rpartition(")")[2].split()
                # its own time and that of its children that ended
                processes[int(path.parent.name)] = _Process(int(fields[1]), sum(map(int, fields[11:15])))
        own, found = 0, {self.process}
        while found:
            own += sum(processes[process].ticks for process in found if process in processes)
            found = {process for process, facts in processes.items() if facts.parent in found}
        return own


class Patience:
    """Makes steps again while something else uses the machine.

    Args:
        tries: how often a step is made at most.
        seconds: for how long in all to wait for a quiet machine before a step is made again; what is left of it.
    """

    def __init__(self, tries: int, seconds: float) -> None:
        self.tries, self.seconds = tries, seconds

    def quietest(self, step: Callable[[], T]) -> tuple[T, float | None, int]:
        """What the step returned in the try during which others used least, their share, and how many tries were made."""
        made: list[tuple[T, float | None]] = []
        while True:
            load = Load(os.getpid())
            result = step()
            made.append((result, load.others()))
            if is_quiet(made[-1][1]) or len(made) == self.tries:
                break
            self._wait()
        best, others = min(made, key=lambda one: one[1] or 0.0)
        return best, others, len(made)

    def _wait(self) -> None:
        told = False
        while self.seconds > 0:
            load = Load(os.getpid())
            time.sleep(min(LOOK_SECONDS, self.seconds))
            self.seconds -= LOOK_SECONDS
            if is_quiet(load.others()):
                return
            if not told:
                log.warning("something else uses the machine; waiting for it to end (benchmark.patience)")
                told = True
