"""Blocks inside of which something is otherwise, and after which it is as before."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """The process's environment has these variables."""
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
    """A method of an object is `function`, which hides that of its class."""
    setattr(owner, method, function)
    try:
        yield
    finally:
        delattr(owner, method)
