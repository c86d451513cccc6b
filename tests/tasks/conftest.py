"""Tasks run in this process, as `main` prepares them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import open_dict

from oar_lightning import tasks
from oar_lightning.__main__ import check_config
from oar_lightning.build import plain
from oar_lightning.config_check import check_targets
from oar_lightning.paths import conf_dir

Prepare = Callable[..., Callable[[], float | None]]


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prepare]:
    """Overrides -> the task's work; each call gets a run folder of its own, in the order of their names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    numbers = itertools.count()

    def prepare(*overrides: str) -> Callable[[], float | None]:
        cfg = compose("config", list(overrides), return_hydra_config=True)
        cfg.hydra.runtime.cwd = str(tmp_path)
        cfg.hydra.runtime.output_dir = str(tmp_path / cfg.output_root / cfg.name / f"seed{cfg.seed}" / f"run{next(numbers)}")
        HydraConfig.instance().set_config(cfg)
        with open_dict(cfg):
            del cfg["hydra"]
        check_config(cfg)
        check_targets(plain(cfg))
        return tasks.prepare(cfg)

    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield prepare
    GlobalHydra.instance().clear()
