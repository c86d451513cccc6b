"""How this process's allocator treats freed memory."""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""
KEPT_BYTES = 256 * 2**20
"""Freed memory at the end of the heap up to which it is kept."""
HEAP_BYTES = 32 * 2**20
"""Smaller blocks come from the heap; the most that glibc takes."""


def keep_freed_memory() -> None:
    """Let glibc keep what is freed for what is allocated next.

    By default the tensors of a pass (some megabytes) go back to the system when they are freed, and the next pass pays a page
    fault for each 4 KiB of its own. Other allocators stay as they are.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_MMAP_THRESHOLD, HEAP_BYTES)
