"""What tests of studies share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture
def load(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a file of the study whose folder, which is no package, is the test module's `FOLDER`."""
    monkeypatch.syspath_prepend(str(request.module.FOLDER))
    return importlib.import_module
