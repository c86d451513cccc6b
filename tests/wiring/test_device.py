"""The threads of a process, and the precision of a device."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from oar_lightning.common.config_check import ConfigError
from oar_lightning.wiring import device


def test_half_precision_that_a_trainer_would_replace_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.precision=16: .* set trainer\.precision=bf16-mixed"):
        device.mixed_precision(16, torch.device("cpu"))
    with device.mixed_precision("bf16-mixed", torch.device("cpu")):
        assert torch.ones(2, 2).mm(torch.ones(2, 2)).dtype == torch.bfloat16


def test_a_device_that_is_none_is_refused() -> None:
    assert device.choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"trainer\.accelerator=gpuu: this task runs on cpu or gpu"):
        device.choose_device("gpuu")


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
