"""What `python -m oar_lightning task=...` can do, one file a task.

Each has ``prepare(cfg) -> work``. It checks the config and builds what is quick, so that a bad config fails at once. It
returns the long work as a function without arguments, which returns the job's objective or None.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

from omegaconf import DictConfig

TASKS = {
    "train": "oar_lightning.tasks.train",
    "warm_start": "oar_lightning.tasks.train",
    "export": "oar_lightning.tasks.export",
    "evaluate": "oar_lightning.tasks.evaluate",
    "score": "oar_lightning.tasks.score",
    "lab": "oar_lightning.tasks.lab",
    "audit": "oar_lightning.tasks.audit",
    "decontaminate": "oar_lightning.tasks.decontaminate",
    "benchmark": "oar_lightning.tasks.benchmark",
    "plan": "oar_lightning.tasks.plan",
    "report": "oar_lightning.tasks.report",
    "sync": "oar_lightning.tasks.sync",
}
"""Task -> module; imported when chosen, because torch and lightning take seconds."""


def load(task: str) -> ModuleType:
    """A task's module, with all that it imports."""
    return importlib.import_module(TASKS[task])


def prepare(cfg: DictConfig) -> Callable[[], float | None]:
    """The work of ``cfg.task``."""
    work: Callable[[], float | None] = load(cfg.task).prepare(cfg)
    return work
