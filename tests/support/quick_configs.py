"""Makes Hydra read the repository's configs faster: a composition takes some thirty files, and the tests compose hundreds."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra._internal import defaults_list
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.default_element import InputDefault
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, grammar_parser

from oar_lightning.common.paths import conf_dir
from oar_lightning.wiring import keys


def reader() -> type[ConfigSource]:
    """Hydra's reader of files."""
    Plugins.instance()  # fills the registry
    return SourcesRegistry.instance().resolve("file")


def read_once(files: type[ConfigSource]) -> Callable[[ConfigSource, str], ConfigResult]:
    """A `load_config` for Hydra's reader of files that parses each of the repository's files once. Each caller gets a copy."""
    read = files.load_config

    @functools.cache
    def pickled(folder: str, name: str) -> bytes:
        return pickle.dumps(read(files("tests", folder), name))

    def load_config(source: ConfigSource, config_path: str) -> ConfigResult:
        if not Path(source.path).is_relative_to(conf_dir().parent):
            return read(source, config_path)
        result: ConfigResult = pickle.loads(pickled(source.path, config_path))
        result.provider = source.provider
        return result

    return load_config


def parse_once(set_to: Callable[[object, str, object], None]) -> None:
    """Let OmegaConf parse each text with `${...}` once: nothing changes its trees. `set_to` is like `setattr`."""
    parse = grammar_parser.parse
    cached = functools.cache(parse)
    for name, module in list(sys.modules.items()):
        if name.startswith("omegaconf.") and getattr(module, "parse", None) is parse:
            set_to(module, "parse", cached)


def skip_unused_choices(set_to: Callable[[object, str, object], None]) -> None:
    """Let Hydra make its table of choices, which interpolations in defaults lists read, for the lists that have one."""
    make = defaults_list._create_interpolation_map

    def when_read(overrides: object, entries: Sequence[InputDefault], self_added: bool) -> DictConfig | None:
        read = any(entry.is_interpolation() for entry in entries)
        return make(overrides, entries, self_added) if read else None

    set_to(defaults_list, "_create_interpolation_map", when_read)


def warm_up() -> None:
    """For a process from which programs are forked: they have read most configs, and know Hydra's grammar."""
    files = reader()
    files.load_config = read_once(files)  # type: ignore[method-assign]
    parse_once(setattr)
    skip_unused_choices(setattr)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for experiment in ("oar_g", "smoke"):
            compose("config", [f"+experiment={experiment}"], return_hydra_config=True)
    keys.additional_groups()  # reads the files of all tasks
    keys.blocks("train")
