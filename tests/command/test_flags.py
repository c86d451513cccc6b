"""Flags that are answered before Hydra reads the command line."""

from __future__ import annotations

import pytest

from oar_lightning import __version__
from oar_lightning.command.flags import answer
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


def test_completion() -> None:
    assert answer(["-sc", "query=bash"], "scorer=rand") == "scorer=random"
    installed = answer(["--shell-completion", "install=bash"], "")
    assert installed is not None
    assert "complete -o nospace" in installed
