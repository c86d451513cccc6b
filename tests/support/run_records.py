"""Made-up `RunRecord`s and curves: what a report reads from MLflow, without MLflow."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np

from oar_lightning.reporting.runs import Curve, RunRecord

_numbers = itertools.count()


def trial(result: float | None, swept: dict[str, Any] | None = None, **changes: Any) -> RunRecord:
    """A complete trial; each starts a second after the one made before."""
    number = next(_numbers)
    tags = {"seed": str((swept or {}).get("seed", 0)), "experiment": "oar_g", "trial": str(number)}
    tags |= {} if swept is None else {"swept": json.dumps(swept)}
    about: dict[str, Any] = {"state": "complete", "reason": "", "duration_s": 30.0, "params": {}}
    about["metrics"] = {} if result is None else {"objective": result}
    about |= changes | {"tags": tags | changes.get("tags", {})}
    return RunRecord(run_id=f"run{number:04d}", name=f"trial-{number}", started=1_700_000_000_000 + 1000 * number, **about)


def straight(run: RunRecord, end: float, start: float = 0.4, last: int = 20) -> dict[str, Curve]:
    """Run id -> a curve from start to end in three points."""
    steps = np.array([0.0, last / 2, last])
    return {run.run_id: Curve(steps, np.linspace(start, end, 3))}
