"""Where a run leaves its traces: files in the run's folder, the same as MLflow artifacts."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.utilities import rank_zero_only

log = logging.getLogger(__name__)

MAX_PARAM_CHARACTERS = 6000
"""MLflow's limit for the value of a parameter."""


class Tracker:
    """Writes artifacts to the run's folder and to MLflow, and parameters and tags to MLflow. Rank 0 only."""

    def __init__(self, run_dir: Path, logger: MLFlowLogger | None) -> None:
        self.run_dir = run_dir
        self.logger = logger

    @rank_zero_only
    def write_text(self, name: str, text: str) -> None:
        """Write `name` (a relative path) under ``artifacts/`` and log it under the same path."""
        path = self.run_dir / "artifacts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if self.logger is not None:
            folder = os.path.dirname(name)
            self.logger.experiment.log_artifact(self.logger.run_id, str(path), folder or None)

    @rank_zero_only
    def write_table(self, name: str, columns: dict[str, list[Any]]) -> None:
        """A table in the form that the MLflow UI shows: JSON with ``columns`` and ``data``."""
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        self.write_text(name, json.dumps({"columns": list(columns), "data": rows}, ensure_ascii=False))
        if self.logger is not None:
            client, run_id = self.logger.experiment, self.logger.run_id
            listed = json.loads(client.get_run(run_id).data.tags.get("mlflow.loggedArtifacts", "[]"))
            entry = {"path": name, "type": "table"}
            if entry not in listed:
                client.set_tag(run_id, "mlflow.loggedArtifacts", json.dumps([*listed, entry]))

    @rank_zero_only
    def write_metrics(self, metrics: dict[str, float], step: int) -> None:
        if self.logger is not None:
            self.logger.log_metrics(metrics, step)

    @rank_zero_only
    def describe(self, config: dict[str, Any], tags: dict[str, str]) -> None:
        """Log the flattened config as parameters (those not there yet: a resumed run keeps its own) and the tags."""
        if self.logger is None:
            return
        from mlflow.entities import Param

        client, run_id = self.logger.experiment, self.logger.run_id
        present = client.get_run(run_id).data.params
        flat = {k: str(v)[:MAX_PARAM_CHARACTERS] for k, v in flatten(config).items()}
        new = [Param(k, v) for k, v in flat.items() if k not in present]
        changed = {k: (present[k], v) for k, v in flat.items() if present.get(k, v) != v}
        if changed:
            log.warning("MLflow keeps the parameters of the run's first start; changed since: %s", changed)
        for start in range(0, len(new), 100):  # MLflow takes 100 parameters at once
            client.log_batch(run_id, params=new[start : start + 100])
        for key, value in tags.items():
            client.set_tag(run_id, key, value)

    @rank_zero_only
    def reopen(self) -> None:
        """Mark a resumed run as running again."""
        if self.logger is not None:
            self.logger.experiment.update_run(self.logger.run_id, status="RUNNING")

    @rank_zero_only
    def close(self, status: str) -> None:
        if self.logger is not None:
            self.logger.experiment.set_terminated(self.logger.run_id, status)


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted keys; lists keep their place as values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, dict) and value:
            flat.update(flatten(value, name))
        else:
            flat[name] = value
    return flat
