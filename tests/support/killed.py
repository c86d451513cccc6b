"""Runs that are killed at a chosen place."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(work: Callable[[], Callable[[], float | None]], where: object, name: str) -> None:
    """The command in a process of its own, which is killed when it calls ``where.name``."""

    def target() -> None:
        setattr(where, name, die)
        work()()

    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
