"""Lets `+sweeps=<name>` find the sweep files, from any folder and from the wheel."""

from __future__ import annotations

from pathlib import Path

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class SweepsSource(FileConfigSource):
    """The folder that contains `sweeps/`, of which Hydra sees `sweeps/` alone.

    In a checkout it contains everything else too, environments and outputs included, and `--help` walks through all that it
    sees.
    """

    @staticmethod
    def scheme() -> str:
        return "oar-sweeps"

    def is_group(self, config_path: str) -> bool:
        return config_path == "" or (_in_sweeps(config_path) and super().is_group(config_path))

    def is_config(self, config_path: str) -> bool:
        return _in_sweeps(config_path) and super().is_config(config_path)


def _in_sweeps(config_path: str) -> bool:
    return config_path.split("/")[0] == "sweeps"


class SweepsSearchPath(SearchPathPlugin):
    """Adds the sweep files where the program's own config is this package's. Folders of `hydra.searchpath` come first."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        from oar_lightning.common.paths import conf_dir

        own = {Path(element.path.removeprefix("file://")) for element in search_path.get_path() if element.provider == "main"}
        if conf_dir() in own:
            search_path.append(provider="oar_lightning", path=f"{SweepsSource.scheme()}://{conf_dir().parent}")
