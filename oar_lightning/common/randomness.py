"""Seeds derived from the purpose of a draw: the draw depends on no row order, padding, batching or other draw."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from any printable parts; the same parts give the same seed everywhere."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*parts: object) -> torch.Generator:
    """A CPU generator seeded by `parts`. Draw on the CPU and move the result: all devices then get the same numbers."""
    return torch.Generator().manual_seed(derive_seed(*parts))


@contextlib.contextmanager
def global_rng_kept() -> Iterator[None]:
    """Restore the global random states of Python, numpy and torch after a block."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
