"""How much memory a process, or a GPU for it, has held at most."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import torch


def reset_peak(device: torch.device) -> int | None:
    """Reset the peak of memory; returns the bytes held now, or None where they cannot be read (CPU memory outside Linux)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # freed memory must not count as held
        Path("/proc/self/clear_refs").write_text("5")  # 5: resets the peak of resident memory
        return process_memory("VmRSS")
    except OSError:
        return None


def read_peak(device: torch.device) -> int:
    """The most bytes held since `reset_peak`."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else process_memory("VmHWM")


def process_memory(key: str) -> int:
    """A number of bytes of /proc/self/status: `VmRSS` (resident now) or `VmHWM` (its peak)."""
    match = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024
