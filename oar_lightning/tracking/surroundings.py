"""Versions and hardware of a run as MLflow tags, so that a report needs no other source."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

import torch

LIBRARIES = ("torch", "lightning", "transformers")


def surroundings(accelerator: str) -> dict[str, str]:
    """The tags `python`, each of LIBRARIES, and `hardware`."""
    versions = {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}
    return versions | {"hardware": hardware(accelerator)}


def hardware(accelerator: str) -> str:
    """The GPU's name where `trainer.accelerator` uses one; else the CPU, its cores and torch's threads."""
    if accelerator in ("gpu", "cuda", "auto") and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else []
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores, torch threads: {torch.get_num_threads()}"
