"""The completions of `support.removal`."""

from __future__ import annotations

import pytest
from support.removal import planted_keys, sequences_as_rollouts


@pytest.fixture
def rollouts():
    return sequences_as_rollouts()


@pytest.fixture
def planted():
    """Rollouts, and the place of each key among the reasoning."""
    return planted_keys()
