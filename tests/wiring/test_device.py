"""The threads of a process."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from oar_lightning.wiring import device


def test_threads_are_set_only_where_their_number_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(device, "torch", SimpleNamespace(get_num_threads=lambda: 2, set_num_threads=calls.append))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    device.set_threads(None)
    assert "OMP_NUM_THREADS" not in os.environ
    device.set_threads(2)
    assert (calls, os.environ["OMP_NUM_THREADS"]) == ([], "2")
    device.set_threads(3)
    assert (calls, os.environ["OMP_NUM_THREADS"]) == ([3], "3")
