"""The command line before Hydra reads it: flags that this package answers itself, and the order of the rest."""

from __future__ import annotations

from collections.abc import Sequence

from oar_lightning import __version__
from oar_lightning.command.completion import candidates, script
from oar_lightning.command.help_page import help_page


def answer(arguments: Sequence[str], line: str) -> str | None:
    """What to print for `--help`, `--version` and bash's completion; None where Hydra takes the arguments.

    Args:
        arguments: of the command; overrides among them change nothing here.
        line: the arguments typed so far where bash asks what could follow, with the word at the cursor last.
    """
    given = set(arguments)
    if given & {"--help", "-h"}:
        return help_page()
    if "--version" in given:
        return f"oar-lightning {__version__}"
    if given & {"--shell-completion", "-sc"}:
        if "query=bash" in given:
            return "\n".join(candidates(line))
        if given & {"install=bash", "uninstall=bash"}:
            return script(uninstall="uninstall=bash" in given)
    return None


TAKE_A_VALUE = (
    "--package",
    "-p",
    "--config-path",
    "-cp",
    "--config-name",
    "-cn",
    "--config-dir",
    "-cd",
    "--experimental-rerun",
)
"""Hydra's flags that are followed by any word."""

TAKE_A_CHOICE = ("--cfg", "-c", "--info", "-i")
"""Those that may be followed by one of a few."""


def flags_first(arguments: Sequence[str]) -> list[str]:
    """The arguments with Hydra's flags before the overrides: Hydra takes no overrides on both sides of a flag."""
    flags: list[str] = []
    overrides: list[str] = []
    before = ""
    for argument in arguments:
        is_value = before in TAKE_A_VALUE or (before in TAKE_A_CHOICE and not set("=~") & set(argument))
        (flags if is_value or argument.startswith("-") else overrides).append(argument)
        before = "" if is_value else argument
    return [*flags, *overrides]
