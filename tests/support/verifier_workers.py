"""Verifiers of tests, and their worker processes by the process table."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 1.0
TOWERS = ["9^{9^{9^{9}}}", "10^{10^{10}}", "(10^9)!"]
"""Answers that hang computer algebra."""


def algebra(number: int) -> tuple[list[str], list[str]]:
    """A gold and a correct answer that only computer algebra can compare."""

    return [f"5! + {number}"], [f"{120 + number}"]


def worker_pids(*parents: int) -> set[int]:
    """The living worker processes, by the process table; with `parents`, their children only."""
    pids = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_worker = b"oar_lightning.answers.verifier_worker" in (folder / "cmdline").read_bytes().split(b"\0")
            state, ppid = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:  # ended meanwhile
            continue
        if is_worker and state != "Z" and (not parents or int(ppid) in parents):
            pids.add(int(folder.name))
    return pids


def has_ended(pid: int) -> bool:
    """Whether its parent can be told so; a process that is ending has lost its command line before that."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()
