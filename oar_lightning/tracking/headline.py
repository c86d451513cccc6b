"""The metrics that a run is looked at for, first in MLflow's UI.

The UI shows a run's charts in groups by the part of a name before its last slash, in the order of their bytes: capitals before
small letters, and names without a slash last. So these metrics are delivered a second time, in a group of this name. The
copies are made on delivery: other loggers, the journal and reports do not know them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

GROUP = "Main"

COPIED = {"reward": "reward", "rewards/accuracy": "accuracy"}
"""Metric of a step -> its name in the group. The sampled accuracies on evaluation sets come besides."""

EVALUATED = re.compile(r"eval/([^/]+)/(avg_at_\d+)")


def headline(metrics: Mapping[str, float]) -> dict[str, float]:
    """Copies, such as ``Main/reward`` and ``Main/chain avg_at_4``."""
    copies = {}
    for name, value in metrics.items():
        if name in COPIED:
            copies[f"{GROUP}/{COPIED[name]}"] = value
        elif found := EVALUATED.fullmatch(name):
            copies[f"{GROUP}/{found[1]} {found[2]}"] = value
    return copies
