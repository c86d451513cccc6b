"""A lab that is killed again and again at random ends with the numbers of one that was left alone."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from support.commands import Forked, run, started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LAB = [
    *("task=lab", "lab.problems=6", "lab.samples=2", "lab.continuations=8", "lab.batch=4", "num_threads=1"),
    *("lab.faithfulness.fills=[model_sample]", "lab.faithfulness.completions=4", "lab.stability=null", "lab.gradients=null"),
    *(f"~lab.estimators.{name}" for name in ("oar_p", "total_effect", "information_gain")),
]


def kept(folder: Path) -> dict[bytes, bytes]:
    path = folder / "outputs" / "lab" / "cache.db"
    if not path.exists():
        return {}
    with sqlite3.connect(path) as database:
        try:
            return dict(database.execute("SELECT key, value FROM kept"))
        except sqlite3.OperationalError:  # killed before it made its table
            return {}


def numbers(folder: Path) -> list[Any]:
    path = sorted(folder.glob("outputs/lab/seed0/*/results.json"))[-1]
    found = json.loads(path.read_text())
    return [found[key] for key in ("completions", "tokens", "truths", "measures", "differences")]


def wait_until_more(command: Forked, folder: Path, rows: int) -> bool:
    """Whether the store came to hold so many rows before the command ended."""
    while command.poll() is None:
        if len(kept(folder)) >= rows:
            return True
        time.sleep(0.02)
    return False


def test_killed_at_random(tmp_path: Path) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    for folder in (alone, killed):
        folder.mkdir()
    assert run(alone, *LAB, timeout=600).code == 0
    rng, kills = random.Random(0), 0
    while True:
        with started(killed, *LAB) as command:
            if not wait_until_more(command, killed, len(kept(killed)) + rng.randrange(1, 100)):
                assert command.wait(600) == 0, command.shown
                break
            time.sleep(rng.random() * 0.3)
            command.send_signal(signal.SIGKILL)
            command.wait(60)
            kills += 1
    assert kills >= 2
    assert kept(killed) == kept(alone)
    assert numbers(killed) == numbers(alone)
