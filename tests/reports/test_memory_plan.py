"""What `task=plan` expects against what processes take: reports/memory_plan on some of its shapes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.study_scripts import REPORTS, load_script

SCRIPT = REPORTS / "memory_plan" / "measure.py"


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("TRANSFORMERS_SDPA_FORCE_GQA", "1")
    return load_script("memory_plan")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's high-water mark")
@pytest.mark.parametrize("shape", ["authors", "LoRA", "large vocabulary"])
def test_peaks_are_within_the_bar(shape: str, measure: ModuleType, tmp_path: Path) -> None:
    phases = ["weights", "update", "update, checkpointing", "OAR-G", "OAR-P approximate"]
    command = [sys.executable, str(SCRIPT), "--here", "--shapes", shape, "--phases", *phases]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=os.environ | measure.RETURNED)
    measured = {key: found for line in done.stdout.splitlines() for key, found in json.loads(line).items()}
    assert len(measured) == len(phases)
    measure.save_config(measure.SHAPES[shape](), tmp_path)
    ratios = {}
    for phase in phases:
        bytes_taken = measured[f"{shape}/{phase}"]["measured"]
        if bytes_taken > measure.NOISE:
            ratios[phase] = measure.planned(measure.Case(shape, phase), tmp_path)["planned"] / bytes_taken
    assert len(ratios) >= 4
    assert all(abs(ratio - 1) <= measure.BAR for ratio in ratios.values()), ratios
