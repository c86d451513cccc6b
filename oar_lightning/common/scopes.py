"""Context managers for temporary changes, which they undo on exit."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process for a block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def replaced(owner: Any, method: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of one object (not of its class) by `function` for a block."""
    setattr(owner, method, function)
    try:
        yield
    finally:
        delattr(owner, method)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A block of imports of large libraries, which takes a fifth less time without the garbage collector.

    What an import makes stays, so the collector would look through it again and again; nor does it after the block.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def ctrl_c_ends(clean: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C in the block calls `clean` and ends the process at once, with exit code 130 and one line.

    As an exception it would be a long traceback, and is lost where Python calls a destructor, of which imports have many.
    Where something else than Python answers it already, that stays.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        clean()
        os.write(2, b"stopped before the work began\n")
        os._exit(128 + number)

    with _answered(signal.SIGINT, signal.default_int_handler, leave):
        yield


@contextlib.contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Make SIGTERM unwind the stack like Ctrl-C, with exit code 143, so that what is open is closed.

    Where something else answers SIGTERM already, that stays.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    with _answered(signal.SIGTERM, signal.SIG_DFL, leave):
        yield


@contextlib.contextmanager
def _answered(number: signal.Signals, default: Any, leave: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """`leave` takes a signal that else `default` would, for a block."""
    if signal.getsignal(number) != default:
        yield
        return
    signal.signal(number, leave)
    try:
        yield
    finally:
        signal.signal(number, default)
