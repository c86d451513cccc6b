"""Tasks run in this process, as `main` prepares them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from support.composing import Prepare, composed_whole, passed, without_hydra

from oar_lightning import tasks


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hydra_conf: None, store: str) -> Prepare:
    """Overrides -> the task's work, in the test's folder, which has an empty MLflow store.

    Each call gets a run folder of its own, in the order of their names.
    """
    monkeypatch.chdir(tmp_path)
    numbers = itertools.count()

    def prepare(*overrides: str) -> Callable[[], float | None]:
        folder = f"{tmp_path}/${{output_root}}/${{name}}/seed${{seed}}/run{next(numbers)}"
        cfg = composed_whole(*overrides, cwd=str(tmp_path), output_dir=folder)
        return tasks.prepare(passed(without_hydra(cfg)))

    return prepare
