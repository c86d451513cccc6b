"""The command tells torch's libraries the number of threads before they are loaded; later it would slow attention down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.commands import environment

PROGRAM = """
import os, runpy, sys

class Watch:
    @staticmethod
    def find_spec(name, *rest):
        if name == "torch":
            print("torch is imported with", os.environ.get("OMP_NUM_THREADS"), flush=True)
            raise SystemExit(3)

sys.meta_path.insert(0, Watch)
runpy.run_module("oar_lightning", run_name="__main__", alter_sys=True)
"""


def test_the_number_is_known_when_torch_is_imported(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, "+experiment=smoke", "num_threads=3"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr
    assert "torch is imported with 3" in done.stdout
