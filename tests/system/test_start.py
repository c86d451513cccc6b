"""What a command imports before it answers. Seconds depend on the machine, so these are lists of packages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import environment

SLOW = {
    "torch",
    "lightning",
    "transformers",
    "mlflow",
    "optuna",
    "scipy",
    "numpy",
    "pandas",
    "matplotlib",
    "datasets",
    "deepspeed",
}


def imported(folder: Path, *arguments: str, until: str = "") -> tuple[set[str], str]:
    """The packages that a command has imported when it prints `until`, or at its end; and what it has printed."""
    command = [sys.executable, "-X", "importtime", "-m", "oar_lightning", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200
    )
    assert until in done.stdout, done.stdout[-3000:]
    lines = (done.stdout.partition(until)[0] if until else done.stdout).splitlines()
    found = [re.match(r"import time: +\d+ \| +\d+ \| +(\w+)", line) for line in lines]
    return {match[1] for match in found if match}, "\n".join(x for x in lines if not x.startswith("import time:"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--help", "Experiments (+experiment=NAME)"),
        ("+experiment=oar_g --cfg job", "oar_lightning.credit.scorers.OarG"),
        ("+gate.tua=0.5 update.problems=4", "unknown key gate.tua; did you mean gate.tau?"),
        ("update.problems=4.5", "update.problems must be an integer >= 1, got 4.5"),
    ],
)
def test_what_needs_no_torch_imports_none(tmp_path: Path, arguments: str, expected: str) -> None:
    packages, text = imported(tmp_path, *arguments.split())
    assert expected in text
    assert "hydra" in packages, "the list is not empty by mistake"
    assert not packages & SLOW


@pytest.mark.slow
def test_the_first_step_does_without_what_the_run_does_not_use(tmp_path: Path) -> None:
    """scipy and matplotlib are not listed: torchmetrics imports them where they are installed, and Lightning imports it."""
    packages, _ = imported(tmp_path, "+experiment=smoke", "logger=none", "trainer.max_steps=1", until="step 1/1")
    assert {"torch", "lightning", "transformers"} <= packages
    assert not packages & {
        "mlflow",
        "optuna",
        "sqlalchemy",
        "alembic",
        "pandas",
        "pyarrow",
        "datasets",
        "deepspeed",
        "math_verify",
    }
