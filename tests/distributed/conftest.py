"""What the tests of launching start from."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which a user has started this process, not Slurm or torchrun."""
    for name in [n for n in os.environ if n.startswith(("SLURM_", "TORCHELASTIC_"))] + ["RANK", "LOCAL_RANK", "NODE_RANK"]:
        monkeypatch.delenv(name, raising=False)
