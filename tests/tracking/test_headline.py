"""What comes first in MLflow's UI."""

from __future__ import annotations

from oar_lightning.tracking.headline import GROUP, headline
from oar_lightning.tracking.metric_table import METRICS, entries_of

STEP = {"reward": 0.5, "reward_std": 0.1, "rewards/accuracy": 0.4, "rewards/format": 1.0, "loss": 0.0}
EVALUATED = {"eval/aime24/avg_at_8": 0.2, "eval/aime24/avg_at_8_low": 0.1, "eval/aime24/level_2/avg_at_8": 0.3}


def test_reward_and_accuracies_are_copied_and_nothing_else() -> None:
    assert headline(STEP | EVALUATED) == {"Main/reward": 0.5, "Main/accuracy": 0.4, "Main/aime24 avg_at_8": 0.2}
    assert headline({"objective": 0.5}) == {}


def test_the_group_comes_before_all_others() -> None:
    """In the order of characters, which tests/reports/test_mlflow_ui.py sees in the UI."""
    groups = {metric.name.rsplit("/", 1)[0] for metric in METRICS if "/" in metric.name}
    assert sorted(groups)[0] == GROUP
    assert all(len(entries_of(name)) == 1 for name in headline(STEP | EVALUATED))
