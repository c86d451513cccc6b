"""Reads real benchmark data from ../shared/data; tests that need a file that is not there are skipped, with the reason."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"


def path_of(name: str) -> Path:
    if not (FOLDER / name).is_file():
        pytest.skip(f"needs {name} in ../shared/data")
    return FOLDER / name


def rows_of(name: str) -> list[dict[str, Any]]:
    path = path_of(name)
    with gzip.open(path, "rt", encoding="utf-8") if name.endswith(".gz") else open(path, encoding="utf-8") as stream:
        return [json.loads(line) for line in stream if line.strip()]
