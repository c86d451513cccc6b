"""Commands whose process may not take more memory than it has: the system itself refuses, as a user meets it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.limited_memory import train_limited

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited by what Linux says of it"),
]


def test_training_goes_on_with_smaller_passes_to_the_same_weights(tmp_path: Path) -> None:
    for mib in (0, 200):
        # in float32 AdamW's first steps make more than 1e-5 of the rounding of gradients that are nearly 0
        done = train_limited(tmp_path, mib, "auto", "trainer.precision=64-true")
        assert done.returncode == 0, done.stdout + done.stderr
        lowered = re.findall(
            r"update.token_budget is lowered from (no bound|\d+) to (\d+) for the rest", done.stdout + done.stderr
        )
        assert bool(lowered) == bool(mib)
    free, limited = (load_file(tmp_path / f"policy{mib}" / "model.safetensors") for mib in (0, 200))
    moved = 0.0
    assert free.keys() == limited.keys()
    for name, weight in free.items():
        torch.testing.assert_close(limited[name], weight, rtol=0, atol=1e-9)
        moved = max(moved, float((weight - limited[name]).abs().max()))
    assert moved > 0  # other passes round otherwise: nothing was taken from one file for both


def test_a_number_ends_the_run_with_what_to_do(tmp_path: Path) -> None:
    done = train_limited(tmp_path, 200, "20000")
    shown = done.stdout + done.stderr
    assert done.returncode == 1, shown
    assert "DefaultCPUAllocator: can't allocate memory" in shown
    assert "out of memory: update.token_budget (and update.microbatches) bounds a pass of the update" in shown
    assert "Set them to auto" in shown
