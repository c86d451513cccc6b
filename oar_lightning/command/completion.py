"""What bash completes: Hydra's candidates, in less time than Hydra takes, for `python -m` too.

Hydra's own script completes `python <file>.py`, not `python -m`, and its query reads all configs once for each group.
"""

from __future__ import annotations

from pathlib import Path

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from oar_lightning.common.paths import conf_dir

LINE = "OAR_LIGHTNING_LINE"
"""The environment variable in which the script hands over what has been typed."""


def script(uninstall: bool = False) -> str:
    """Bash code that switches completion on or off; for `eval`."""
    if uninstall:
        return "complete -r oar-lightning python python3; unset -f _oar_lightning"
    return Path(__file__).with_name("completion.bash").read_text(encoding="utf-8")


def candidates(line: str) -> list[str]:
    """What the last word of `line` may become: keys, groups, their options, values, flags. Nothing where Hydra cannot tell.

    Args:
        line: the arguments up to the cursor.
    """
    line = line.replace('"', "").replace("'", "")
    word = "" if line.endswith(" ") else line.rpartition(" ")[2]
    if word.startswith("-"):
        return sorted(flag for flag in get_args_parser()._option_string_actions if flag.startswith(word))
    try:
        return BashCompletion(_Loader(create_config_search_path(str(conf_dir()))))._query("config", line)
    except (HydraException, OmegaConfBaseException, SystemExit):  # SystemExit: a flag without its value
        return []


class _Loader(ConfigLoaderImpl):
    """Hydra's loader, which reads the configs once for all groups."""

    _groups: ConfigLoader | None = None

    def get_group_options(
        self,
        group_name: str,
        results_filter: ObjectType | None = ObjectType.CONFIG,
        config_name: str | None = None,
        overrides: list[str] | None = None,
    ) -> list[str]:
        if self._groups is None:
            _, self._groups = self._parse_overrides_and_create_caching_repo(config_name, overrides or [])
        options: list[str] = self._groups.get_group_options(group_name, results_filter)
        return options
