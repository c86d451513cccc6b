"""The flags that this package answers itself, before Hydra reads the command line."""

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
