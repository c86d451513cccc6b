"""Whether something else uses the machine, seen from each side, and which of several tries of a step counts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oar_lightning.benchmark import machine_load
from oar_lightning.benchmark.machine_load import Load, Patience

WORKS = "while True: pass"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORKS!r}])"


@pytest.fixture
def processes() -> Iterator[dict[str, int]]:
    """Process ids: one that rests, and one that rests while its child works."""
    started = {}
    try:
        for name, program in {"rests": "import time; time.sleep(600)", "parent": PARENT}.items():
            started[name] = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
        yield {name: process.pid for name, process in started.items()}
    finally:
        for process in started.values():
            os.killpg(process.pid, 9)
            process.wait()


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="processor times are read from /proc")
def test_what_a_descendant_uses_is_not_of_others(processes: dict[str, int]) -> None:
    loads = {name: Load(process) for name, process in processes.items()}
    time.sleep(1.0)
    shares = {name: load.others() for name, load in loads.items()}
    # what the child used is in one and not in the other; how much that is depends on what else the machine does
    assert shares["rests"] > shares["parent"] + 0.04 / os.cpu_count()


@pytest.mark.parametrize(
    ("shares", "counts", "tries"),
    [([0.5, 0.3, 0.05], 2, 3), ([0.5, 0.3, 0.4], 1, 3), ([0.05], 0, 1), ([None], 0, 1), ([0.1], 0, 1), ([0.11, 0.0], 1, 2)],
)
def test_a_step_is_made_until_one_is_quiet_else_the_quietest_counts(
    shares: list[float | None], counts: int, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(shares)
    monkeypatch.setattr(Load, "others", lambda self: next(left))
    numbers = iter(range(10))
    assert Patience(3, 0.0).quietest(lambda: next(numbers)) == (counts, shares[counts], tries)


def test_waiting_ends_when_the_machine_is_quiet_or_patience_is_used_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(machine_load.time, "sleep", waits.append)
    left = iter([0.9, 0.9, 0.0, 0.9, 0.9, 0.9, 0.9])  # a step, two looks, a step, ...
    monkeypatch.setattr(Load, "others", lambda self: next(left))
    patience = Patience(3, 3.5)
    patience.quietest(lambda: None)
    assert waits == [1.0, 1.0, 1.0, 0.5]
    assert patience.seconds <= 0
    assert "benchmark.patience" in caplog.text
