"""Trials of one sweep are compared with each other, and so have the same problems."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from oar_lightning.common.mappings import differing
from oar_lightning.common.outputs import replace_file
from oar_lightning.distributed.launch import is_first_rank
from oar_lightning.sweep.trial import SweepRefused, current_ticket, job_folder


def check_problems_of_sweep(config: Mapping[str, Any], problems: Mapping[str, str]) -> None:
    """Compare a trial's problems (key of a source -> fingerprint) with those of the sweep's earlier trials with the same
    settings of their sources; the first one's are kept in the sweep's folder, in ``study/problems_<settings>.json``.

    Raises:
        SweepRefused: where they are others, as where a file was edited between two starts of the sweep.
    """
    folder = job_folder()
    if folder is None or current_ticket() is None:
        return
    sources = [config.get("data", {}).get(name) for name in ("train", "evaluation", "first_problems")]
    settings = hashlib.sha256(json.dumps(sources, sort_keys=True, default=str).encode()).hexdigest()[:16]
    path = folder.parent / "study" / f"problems_{settings}.json"
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # there is none, or a power cut has left half of it
        if is_first_rank():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(dict(problems), indent=1))
        return
    if other := differing(before, problems):
        raise SweepRefused(
            f"the content of {', '.join(other)} is not what this sweep's earlier trials had, and trials with other problems "
            "cannot be compared; bring it back, or begin another study with hydra.sweeper.study_name=..."
        )
