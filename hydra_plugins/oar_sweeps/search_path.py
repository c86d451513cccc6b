"""Lets `+sweeps=<name>` find the sweep files, from any folder and from the wheel."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class SweepsSearchPath(SearchPathPlugin):
    """Adds the folder that contains `sweeps/`. Folders of `hydra.searchpath` come first."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        from oar_lightning.common.paths import conf_dir

        search_path.append(provider="oar_lightning", path=f"file://{conf_dir().parent}")
