"""What runs are told apart by in MLflow, the same for every task that logs there."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from oar_lightning.build import plain
from oar_lightning.tracking import git_revision

VERSIONS = ("torch", "lightning", "transformers")
"""Libraries whose versions a run carries."""


def run_tags(cfg: DictConfig) -> dict[str, str]:
    return {
        "experiment": str(cfg.name),
        "task": str(cfg.task),
        "scorer": str(HydraConfig.get().runtime.choices.get("scorer")),
        "data": str(cfg.data.name),
        "seed": str(cfg.seed),
        "git_revision": git_revision(),
        "overrides": " ".join(HydraConfig.get().overrides.task),
        "python": platform.python_version(),
        **{name: version(name) for name in VERSIONS},
        "hardware": hardware(str(cfg.trainer.accelerator)),
    }


def hardware(accelerator: str) -> str:
    """The GPU, where `trainer.accelerator` asks for one that is there; else the CPU, its cores and torch's threads."""
    if accelerator in ("gpu", "cuda", "auto") and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else []
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores, torch threads: {torch.get_num_threads()}"


SECTIONS = ("audit", "benchmark", "decontaminate", "report", "score", "sweep")
"""Parts of the config that only the task of their name reads."""


def run_parameters(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config without the other tasks' sections: what a run is compared by."""
    return {key: value for key, value in plain(cfg).items() if key not in SECTIONS or key == cfg.task}
