"""Shared fixtures. Shapes in the package's signatures are checked while its tests run."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # as `python -m oar_lightning` sets it
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the models are tiny, and threads that wait would spin

import support.typechecker  # noqa: F401  (the hook reads it as an attribute of its package)
from jaxtyping import install_import_hook

with install_import_hook("oar_lightning", "support.typechecker.typechecked"):
    import oar_lightning.credit.gate
    import oar_lightning.credit.scorers
    import oar_lightning.objective.advantage
    import oar_lightning.objective.diagnostics
    import oar_lightning.objective.loss
    import oar_lightning.policy.language_model
    import oar_lightning.types  # noqa: F401

import hypothesis
import pytest
import torch
from support.composing import hydra_conf, prepared  # noqa: F401  (fixtures)
from support.mlflow_stores import http_app_store, server, store, template  # noqa: F401  (fixtures)
from support.toy import gpt2, qwen2_golden

# the same examples on every run
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """What all the imports have made is not looked through again at each garbage collection."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def golden_model():
    """The golden tiny Qwen2 in float64."""
    return qwen2_golden()


@pytest.fixture
def model64():
    """A GPT-2 with random weights, float64 throughout (no float32 islands), dropout 0.1, absolute positions; training mode."""
    return gpt2()
