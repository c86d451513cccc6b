"""Commands whose process may not take more memory than it has: the system itself refuses, as a user meets it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.field_methods import share_apart
from support.limited_memory import train_limited

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited by what Linux says of it"),
]
ROUNDING = 5e-3
"""Of what two steps teach. AdamW's first steps make whole steps of small gradients, and so of their rounding."""


def test_training_goes_on_with_smaller_passes_to_the_same_weights(tmp_path: Path) -> None:
    for mib in (0, 200):
        done = train_limited(tmp_path, mib, "auto")
        assert done.returncode == 0, done.stdout + done.stderr
        lowered = re.findall(
            r"update.token_budget is lowered from (no bound|\d+) to (\d+) for the rest", done.stdout + done.stderr
        )
        assert bool(lowered) == bool(mib)
    # other passes round otherwise: nothing was taken from one file for both
    assert 0 < share_apart(tmp_path / "policy200", tmp_path / "policy0") < ROUNDING


def test_a_number_ends_the_run_with_what_to_do(tmp_path: Path) -> None:
    done = train_limited(tmp_path, 200, "20000")
    shown = done.stdout + done.stderr
    assert done.returncode == 1, shown
    assert "DefaultCPUAllocator: can't allocate memory" in shown
    assert "out of memory: update.token_budget (and update.microbatches) bounds a pass of the update" in shown
    assert "Set them to auto" in shown
