"""Flags that are answered before Hydra reads the command line."""

from __future__ import annotations

import pytest

from oar_lightning import __version__
from oar_lightning.command.flags import answer, flags_first
from oar_lightning.command.help_page import help_page


@pytest.mark.parametrize(
    "line", ["--help", "-h", "--help task=evaluate", "task=evaluate --help", "--multirun --help nonsense=="]
)
def test_help_whatever_else_is_given(line: str) -> None:
    assert answer(line.split(), "") == help_page()


def test_the_version_is_ours() -> None:
    assert answer(["--version"], "") == f"oar-lightning {__version__}"


@pytest.mark.parametrize(
    "line", ["", "+experiment=oar_g", "--cfg job", "--info", "--hydra-help", "-sc install=fish", "name=--help"]
)
def test_all_else_is_hydras(line: str) -> None:
    assert answer(line.split(), "") is None


@pytest.mark.parametrize(
    ("line", "ordered"),
    [
        ("a=1 -m b=2", "-m a=1 b=2"),
        (
            "+experiment=oar_g --cfg job --package gate gate.tau=0.3 seed=1",
            "--cfg job --package gate +experiment=oar_g gate.tau=0.3 seed=1",
        ),
        ("a=1 -c job --resolve ~b", "-c job --resolve a=1 ~b"),
        ("--info a=1", "--info a=1"),
        ("a=1 -i defaults-tree b=2", "-i defaults-tree a=1 b=2"),
        ("a=1 -i ~b", "-i a=1 ~b"),
        ("a=1 --config-dir x=y b=-1", "--config-dir x=y a=1 b=-1"),
        ("a=1 --config-dir=c b=2", "--config-dir=c a=1 b=2"),
        ("a=1 b=2", "a=1 b=2"),
        ("", ""),
    ],
)
def test_overrides_may_stand_on_both_sides_of_a_flag(line: str, ordered: str) -> None:
    assert flags_first(line.split()) == ordered.split()


def test_completion() -> None:
    assert answer(["-sc", "query=bash"], "scorer=rand") == "scorer=random"
    installed = answer(["--shell-completion", "install=bash"], "")
    assert installed is not None
    assert "complete -o nospace" in installed
