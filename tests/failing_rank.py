"""A reward that breaks on the rank given by the environment; the third time that it is asked."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

calls = 0


def breaking(problems: Sequence[Any], completions: Sequence[Any]) -> list[float]:
    global calls
    calls += 1
    if calls > 2 and os.environ.get("LOCAL_RANK", "0") == os.environ["BREAKING_RANK"]:
        if os.environ["BREAKING_HOW"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ArithmeticError("broken on purpose")
    return [1.0 for _ in completions]
