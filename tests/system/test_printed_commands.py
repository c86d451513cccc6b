"""The commands that a study's page prints are run in a shell, and their page has the same tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import environment

TINY = (
    "trainer.max_steps=1 update.problems=2 update.group_size=4 evaluation.problems=4 evaluation.samples=2 "
    "evaluation.greedy=false evaluation.heatmap=false num_threads=1"
)


def shell(lines: str, folder: Path) -> None:
    """Run lines in a shell whose `python` is this one."""
    program = folder / "bin" / "python"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    variables = environment(PATH=f"{program.parent}:{os.environ['PATH']}")
    subprocess.run(["bash", "-e", "-c", lines], cwd=folder, env=variables, check=True, capture_output=True, text=True)


def tables(page: str) -> list[str]:
    """The rows of arms, without what a run cost."""
    rows = re.findall(r"^\| (?:uniform|oar_g|grpo).*$", page, re.MULTILINE)
    return ["|".join(cell for place, cell in enumerate(row.split("|")) if place != 4) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["runs", "sweep"])
def test_the_printed_commands_make_the_same_table(kind: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    arms = f"-m +experiment=grpo,oar_g seed=0 optimizer.lr=1e-3 {TINY}"
    report = 'task=report report.name=x "report.filter=\'tags.task = \\"train\\"\'"'
    if kind == "sweep":
        arms = f"-m +experiment=oar_g +sweeps=methods scorer=uniform,oar_g 'seed=choice(0)' {TINY} hydra.sweeper.study_name=x"
        report = "task=report sweep=x"
    shell(f"python -m oar_lightning {arms}\npython -m oar_lightning {report}", first)
    (page,) = first.glob("reports/*-x/README.md")
    printed = page.read_text().split("```")[1]
    shell(printed, second)
    (again,) = second.glob("reports/*-x/README.md")
    assert tables(again.read_text()) == tables(page.read_text())
    assert len(tables(page.read_text())) >= 3
    assert again.read_text().split("```")[1] == printed or kind == "runs"
