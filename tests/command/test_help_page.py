"""The page of `--help` is whole, fits 80 columns, and its commands work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from support.composing import checked
from support.pages import commands

from oar_lightning import tasks
from oar_lightning.command.help_page import COMMANDS, help_page
from oar_lightning.common.paths import conf_dir, sweeps_dir

PAGE = help_page()
FLOWING = " ".join(PAGE.split())


def test_it_fits_80_columns() -> None:
    assert max(map(len, PAGE.splitlines())) <= 80
    assert "\n\n\n" not in PAGE


@pytest.mark.parametrize("path", sorted((conf_dir() / "experiment").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_experiment_has_the_words_of_its_file(path: Path) -> None:
    lines = [line.lstrip("# ") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    words = " ".join(" ".join(lines).split("+experiment=")[1].split()[1:])  # after the command
    shown = PAGE.split("Experiments (+experiment=NAME)\n")[1].split("\nTasks (task=NAME)\n")[0]
    found = re.search(rf"^  {path.stem} +(\S.{{15}})", shown, re.MULTILINE)
    assert found is not None
    assert found[1] in words


def test_all_tasks_groups_and_sweeps_are_there() -> None:
    shown = set(PAGE.replace("*", "").split())
    assert set(tasks.TASKS) <= shown
    assert {path.stem for path in sweeps_dir().glob("*.yaml")} <= shown
    files = [path.relative_to(conf_dir()) for path in conf_dir().glob("*/**/*.yaml")]
    own = [path for path in files if path.parts[0] != "hydra"]
    assert {path.stem for path in own} <= shown
    assert {path.parent.as_posix() for path in own if len(path.parts) > 2} <= shown


def test_defaults_are_marked() -> None:
    defaults = yaml.safe_load((conf_dir() / "config.yaml").read_text())["defaults"]
    chosen = {(group, name) for item in defaults if isinstance(item, dict) for group, name in item.items()}
    for group, name in chosen - {("task", "train"), ("override hydra/job_logging", "run")}:
        assert re.search(rf"^  {group} [^*]*\b{name}\*", PAGE, re.MULTILINE), group


@pytest.mark.usefixtures("hydra_conf")
def test_its_commands_compose() -> None:
    found = commands(f"```\n{PAGE}\n```")
    assert 10 <= len(COMMANDS) < len(found)
    for arguments in found[1:]:  # the first line is the usage
        if "-m" not in arguments:  # those of several runs: tests/documentation
            checked(*[argument for argument in arguments if argument not in ("--cfg", "job")])
