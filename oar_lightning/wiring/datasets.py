"""The problems of a run as MLflow datasets: where they come from, a digest of their content, and how many there are."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from oar_lightning.common.credentials import hidden
from oar_lightning.data.fingerprint import fingerprint
from oar_lightning.data.hub import HubProblems
from oar_lightning.data.stream import ProblemSource, is_endless
from oar_lightning.types import MathProblem
from oar_lightning.wiring.config import plain

COLUMNS = [{"type": "string", "name": field.name} for field in dataclasses.fields(MathProblem)]

HUB = {"path": "path", "config_name": "name", "split": "split", "revision": "revision"}
"""Field of MLflow's source `hugging_face`, of which the UI makes a link -> key of the config."""


def datasets(
    cfg: DictConfig, train: ProblemSource | None, eval_sets: Mapping[str, Sequence[MathProblem]]
) -> list[dict[str, str]]:
    """One record for the training problems, where a run reads them, and one for each evaluation set as it is evaluated."""
    data = plain(cfg)["data"]
    found = []
    if train is not None:
        rows = "endless" if is_endless(train) else getattr(train, "size", None)
        found.append(_record(str(data["name"]), "train", data["train"], train, rows))
    for name, problems in eval_sets.items():
        found.append(_record(name, "evaluation", data["evaluation"][name], problems, len(problems)))
    return found


def _record(name: str, context: str, node: Mapping[str, Any], problems: Any, rows: Any) -> dict[str, str]:
    """The fields of MLflow's ``Dataset``, and the dataset's part in the run. `problems`: a source, or themselves."""
    # MLflow takes datasets of the same name and digest for one, whose first profile stays
    digest = hashlib.sha256(f"{context} {rows} {fingerprint(problems)}".encode()).hexdigest()[:16]
    hub = str(node["_target_"]).endswith(f".{HubProblems.__name__}")
    source = hidden({field: node.get(key) for field, key in HUB.items()} if hub else node)
    return {
        "name": name,
        "context": context,
        "digest": digest,
        "source_type": "hugging_face" if hub else "config",
        "source": json.dumps(source, ensure_ascii=False),
        "schema": json.dumps({"mlflow_colspec": COLUMNS}),
        "profile": json.dumps({"num_rows": rows} if rows is not None else {}),
    }
