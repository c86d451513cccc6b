"""The log file of a run, which does not exist before the run has passed its checks."""

from __future__ import annotations

import logging


class RunLog(logging.FileHandler):
    """Keeps its records until `begin`, then writes them and what follows to the file."""

    def __init__(self, filename: str) -> None:
        super().__init__(filename, encoding="utf-8", delay=True)
        self._early: list[logging.LogRecord] | None = []

    def emit(self, record: logging.LogRecord) -> None:
        if self._early is None:
            super().emit(record)
        else:
            self._early.append(record)

    def begin(self) -> None:
        early, self._early = self._early or [], None
        for record in early:
            super().emit(record)
