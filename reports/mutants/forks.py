"""Runs tests again and again without importing the libraries again: `python forks.py torch pytest ...`.

The modules named are imported once. Each line on stdin is a JSON list, seconds and then arguments of pytest; the tests run in a
fork, which imports what is under test afresh. Each line on stdout is what became of them: pytest's exit status, null where
they were ended after those seconds, and the seconds taken.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time

import pytest

MEMORY = 16 << 30
"""Bytes of address space of a fork: a mutant that asks for more gets a MemoryError, which its tests see."""


def main(modules: list[str]) -> None:
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # its memory stays shared with the forks
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        limit, *arguments = json.loads(line)
        started = time.monotonic()
        status = status_of(fork(arguments), started + limit)
        sys.stdout.write(json.dumps([status, time.monotonic() - started]) + "\n")
        sys.stdout.flush()


def fork(arguments: list[str]) -> int:
    child = os.fork()
    if child:
        return child
    os.setsid()  # what the tests start is ended with them
    with contextlib.suppress(ValueError):  # a lower limit is in force
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    status = 70
    try:
        status = int(pytest.main(arguments))
    finally:
        os._exit(status)


def status_of(child: int, end: float) -> int | None:
    """The exit status, negative for a signal; None if it had to be ended."""
    while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if done[0]:
        return os.waitstatus_to_exitcode(done[1])
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
