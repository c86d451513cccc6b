"""Scripts of reports/, which are no package, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

REPORTS = Path(__file__).parents[2] / "reports"


def load_script(study: str, name: str = "measure") -> ModuleType:
    """A module of reports/<study>/<name>.py, which may import its neighbours."""
    spec = importlib.util.spec_from_file_location(f"{study}_{name}", REPORTS / study / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # NamedTuple and dataclasses look themselves up
    sys.path.insert(0, str(REPORTS / study))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(REPORTS / study))
    return module
