"""The child's end of the turns: one training step a line from the driver. Standard library only; both environments read it.

The driver writes a line for each step, the child answers with one line of JSON; the end of its input ends the child. While
it is not its turn it is blocked in a read.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


class Turns:
    """Takes standard output for itself; what anything else prints there goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._started: float | None = None
        self._used = 0.0

    def ready(self, **facts: Any) -> None:
        """Say that everything is loaded, and on what it runs."""
        self._send(facts | {"python": sys.version.split()[0]})

    def step_begins(self, facts: Callable[[], dict[str, Any]]) -> str:
        """Call where a training step begins: reports the one before, `facts()` of it included, and waits for the next turn.
        Returns the driver's line.

        A step is all that happens between two of these calls, whatever it is. The waiting is not counted. The peak is the most
        that the process has held so far.
        """
        now, used = time.perf_counter(), time.process_time()
        if self._started is not None:
            peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            self._send({"seconds": now - self._started, "cpu_seconds": used - self._used, "peak_bytes": peak} | facts())
        if not (line := sys.stdin.readline()):
            raise SystemExit(0)
        self._started, self._used = time.perf_counter(), time.process_time()
        return line

    def _send(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()
