"""The Slurm of this folder's tests, started once for all."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.slurm import SCRIPT, Slurm


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # pytest's own folders are closed to others, which munge refuses
    folder.chmod(0o755)
    try:
        subprocess.run([SCRIPT, "start", folder], check=True, timeout=120)
        yield Slurm(folder)
    finally:
        subprocess.run([SCRIPT, "stop", folder], check=True, timeout=120)
    shutil.rmtree(folder)
