"""Progress of counted work, with and without a terminal."""

from __future__ import annotations

import logging
import time

import pytest
from rich.console import Console

from oar_lightning.common import progress
from oar_lightning.common.activity import activity
from oar_lightning.common.progress import Bar, counted_progress


def wait_for(caplog: pytest.LogCaptureFixture, message: str) -> None:
    until = time.monotonic() + 20
    while message not in caplog.messages:
        assert time.monotonic() < until, caplog.messages
        time.sleep(0.005)


def test_without_a_terminal_lines_come_by_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Also while a single piece of work takes long."""
    monkeypatch.setattr(progress, "EVERY", 0.01)
    with caplog.at_level(logging.INFO), counted_progress("scoring", "completions", 4000, done=1000) as advance:
        with activity("rollout", 256):
            wait_for(caplog, "scoring: 1,000/4,000 completions · rollout 0/256")
        advance(1500)
        wait_for(caplog, "scoring: 2,500/4,000 completions · 0 s left")
        advance(1500)
    assert caplog.messages[-1] == "scoring: 4,000/4,000 completions · 0 s"


def test_a_short_work_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), counted_progress("comparing", "problems", None) as advance:
        advance(3)
    assert caplog.messages == ["comparing: 3 problems · 0 s"]


def test_the_lines_end_with_the_work(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.02)
    with pytest.raises(KeyError), caplog.at_level(logging.INFO), counted_progress("x", "y", 3):
        raise KeyError
    time.sleep(0.05)
    assert caplog.messages == []


def test_the_bar_shows_every_word_in_80_columns() -> None:
    words = "evaluation of math500 128/500 · rollout 1,024/2,000, token 1,234/16,384, 12 min 30 s · 3 h 20 min left"
    console = Console(width=80, record=True, force_terminal=True)
    for what, total in (("step", 160), ("a_file_with_a_rather_long_name.jsonl", None)):
        bar = Bar(what, total, 3, lambda: words)
        with console.capture() as shown:
            console.print(*bar.get_renderables())
        lines = [line.strip() for line in shown.get().splitlines()]
        assert " ".join(" ".join(lines[1:]).split()) == words
        assert "…" not in lines[0]
