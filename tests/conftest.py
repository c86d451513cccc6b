"""Settings and fixtures of all tests. Shapes that signatures of credit and losses name are checked while they run."""

from __future__ import annotations

import gc
import os
import signal
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # as `python -m oar_lightning` sets it
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the models are tiny, and threads that wait would spin

import hypothesis
import pytest
from xdist import is_xdist_controller

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts what runs in its background so, and children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # until all tests are collected: imports make many objects, which stay
pytest.register_assert_rewrite("support")  # failures in helpers show their values too

# the same examples on every run
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")

PLUGINS = ("support.checked_shapes", "support.composing", "support.hub_server", "support.mlflow_stores", "support.html_pages")
"""What imports the package, and fixtures that do. In this order: a module imported before its shapes are checked never is."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import the package, which takes seconds, except in the process of `pytest -n` that only hands tests to others."""
    if not is_xdist_controller(session):
        for name in PLUGINS:
            session.config.pluginmanager.import_plugin(name)


def pytest_collection_finish() -> None:
    """What all the imports have made is not looked through again at each garbage collection, and collections are rarer."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def golden_model() -> Any:
    """The golden tiny Qwen2 in float64."""
    from support.toy import qwen2_golden

    return qwen2_golden()


@pytest.fixture
def model64() -> Any:
    """A GPT-2 with random weights, float64 throughout (no float32 islands), dropout 0.1, absolute positions; training mode."""
    from support.toy import gpt2

    return gpt2()
