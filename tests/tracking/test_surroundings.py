"""What runs say about the machine and the libraries."""

from __future__ import annotations

import platform

import lightning
import pytest
import torch
import transformers

from oar_lightning.tracking.surroundings import hardware, surroundings


def test_versions_are_those_of_the_imported_libraries() -> None:
    tags = surroundings("cpu")
    expected = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    assert tags | expected | {"lightning": lightning.__version__} == tags


def test_the_gpu_is_named_only_where_it_is_asked_for_and_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    for there, accelerator, named in [(True, "gpu", True), (True, "auto", True), (True, "cpu", False), (False, "auto", False)]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        found = hardware(accelerator)
        assert (found == "A GPU") == named
        assert named or found.endswith(f" cores, torch threads: {torch.get_num_threads()}")
