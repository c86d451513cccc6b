"""Metrics that were logged under other names once, so that old runs and sweeps are read like new ones."""

from __future__ import annotations

from collections.abc import Mapping

RENAMED = {
    "step_time": "time/step_s",
    "duration_s": "time/total_s",
    "seconds/rollout": "time/total_generate_s",
    "seconds/reward": "time/total_reward_s",
    "seconds/score": "time/total_score_s",
    "seconds/update": "time/total_update_s",
}
"""Former name -> name."""


def current_name(metric: str) -> str:
    return RENAMED.get(metric, metric)


def former_names(metric: str) -> list[str]:
    return [former for former, name in RENAMED.items() if name == metric]


def by_current_name(metrics: Mapping[str, float]) -> dict[str, float]:
    """Values by today's names. A run that was resumed since has both, of which today's is the newer value."""
    return {current_name(name): value for name, value in metrics.items() if name in RENAMED} | {
        name: value for name, value in metrics.items() if name not in RENAMED
    }
