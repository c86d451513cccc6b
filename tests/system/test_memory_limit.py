"""Commands whose process may not take more memory than it has: the system itself refuses, as a user meets it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited by what Linux says of it"),
]

LIMITED = r"""
    import re
    import resource
    from pathlib import Path

    from oar_lightning.credit.scorers import Uniform


    class Limited(Uniform):
        # From the first scoring on, which precedes the first update, the process may take so many MiB more; 0: any

        def __init__(self, mib: int) -> None:
            super().__init__()
            self.mib = mib

        def __call__(self, model, rollouts):
            if self.mib:
                size = int(re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
                resource.setrlimit(resource.RLIMIT_AS, 2 * (size + self.mib * 2**20,))
                self.mib = 0
            return super().__call__(model, rollouts)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "limited.py").write_text(textwrap.dedent(LIMITED))
    return tmp_path


def train(folder: Path, mib: int, token_budget: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    overrides = [
        *("+experiment=smoke", "logger=none", "num_threads=1", "trainer.max_steps=2", "evaluation.problems=1"),
        *("update.problems=16", "update.group_size=8", "update.microbatches=1", f"update.token_budget={token_budget}"),
        *("~scorer", f"+scorer={{_target_: limited.Limited, mib: {mib}}}", "evaluation.heatmap=false"),
        f"export_to=policy{mib}",
    ]
    command = [sys.executable, "-m", "oar_lightning", *overrides]
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_training_goes_on_with_smaller_passes_to_the_same_weights(folder: Path) -> None:
    for mib in (0, 200):
        done = train(folder, mib, "auto")
        assert done.returncode == 0, done.stdout + done.stderr
        lowered = re.findall(
            r"update.token_budget is lowered from (no bound|\d+) to (\d+) for the rest", done.stdout + done.stderr
        )
        assert bool(lowered) == bool(mib)
    free, limited = (load_file(folder / f"policy{mib}" / "model.safetensors") for mib in (0, 200))
    moved = 0.0
    assert free.keys() == limited.keys()
    for name, weight in free.items():
        torch.testing.assert_close(limited[name], weight, rtol=0, atol=1e-5)
        moved = max(moved, float((weight - limited[name]).abs().max()))
    assert moved > 0  # other passes round otherwise: nothing was taken from one file for both


def test_a_number_ends_the_run_with_what_to_do(folder: Path) -> None:
    done = train(folder, 200, "20000")
    shown = done.stdout + done.stderr
    assert done.returncode == 1, shown
    assert "DefaultCPUAllocator: can't allocate memory" in shown
    assert "out of memory: update.token_budget (and update.microbatches) bounds a pass of the update" in shown
    assert "Set them to auto" in shown
