"""Composes configs in the process of the tests, as `main` gets them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict
from support.quick_configs import parse_once, read_once, reader, skip_unused_choices

from oar_lightning import tasks
from oar_lightning.__main__ import check_config
from oar_lightning.common.config_check import check_targets
from oar_lightning.common.paths import conf_dir
from oar_lightning.training.settings import Settings
from oar_lightning.wiring.config import plain
from oar_lightning.wiring.settings import build_settings

Prepare = Callable[..., Callable[[], float | None]]
"""The type of the fixture `prepared`: overrides -> a function that does the task's work."""


@pytest.fixture(scope="session")
def quick_yaml() -> Iterator[None]:
    """Configs are read faster."""
    files = reader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "load_config", read_once(files))
        parse_once(patch.setattr)
        skip_unused_choices(patch.setattr)
        patch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)  # libyaml's parser, for all else that OmegaConf reads
        yield


@pytest.fixture
def hydra_conf(monkeypatch: pytest.MonkeyPatch, quick_yaml: None) -> Iterator[None]:
    """Hydra composes from conf/ while the test runs, and no MLflow store is named by the environment."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield
    GlobalHydra.instance().clear()


def composed_whole(*overrides: str, **runtime: str) -> DictConfig:
    """The config with its part `hydra`. ${hydra:...} resolves as in a run; `runtime` sets values of `hydra.runtime`."""
    cfg = compose("config", list(overrides), return_hydra_config=True)
    cfg.hydra.runtime.update(runtime)
    HydraConfig.instance().set_config(cfg)
    return cfg


def without_hydra(cfg: DictConfig) -> DictConfig:
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def composed(*overrides: str) -> DictConfig:
    return without_hydra(composed_whole(*overrides))


def passed(cfg: DictConfig) -> DictConfig:
    """The same config, if it passes the checks that come before a task; else their ConfigError."""
    check_config(cfg)
    check_targets(plain(cfg))
    return cfg


def checked(*overrides: str) -> DictConfig:
    return passed(composed(*overrides))


def settings(*overrides: str) -> Settings:
    return build_settings(checked(*overrides))


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hydra_conf: None, store: str) -> Prepare:
    """Overrides -> the task's work, in the test's folder, which has an empty MLflow store.

    Each call gets a run folder of its own, in the order of their names, unless it names one with ``folder=run0``.
    """
    monkeypatch.chdir(tmp_path)
    numbers = itertools.count()

    def prepare(*overrides: str, folder: str | None = None) -> Callable[[], float | None]:
        folder = f"{tmp_path}/${{output_root}}/${{name}}/seed${{seed}}/{folder or f'run{next(numbers)}'}"
        cfg = composed_whole(*overrides, cwd=str(tmp_path), output_dir=folder)
        return tasks.prepare(passed(without_hydra(cfg)))

    return prepare
