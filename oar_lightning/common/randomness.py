"""Seeds derived from what a draw is for, so that it depends neither on row order, padding, batching nor on other draws."""

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
    """A CPU generator seeded by `parts`; draw on the CPU and move, so that all devices agree."""
    return torch.Generator().manual_seed(derive_seed(*parts))


@contextlib.contextmanager
def isolated_rng(*parts: object) -> Iterator[None]:
    """Run a block under global RNGs seeded by `parts`, and put back their states afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(*parts))
        yield


@contextlib.contextmanager
def global_rng_kept() -> Iterator[None]:
    """Put back the global random states of Python, numpy and torch that a block changes."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
