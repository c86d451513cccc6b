"""The table of accuracies before and after training."""

from __future__ import annotations

from support.console import rendered
from support.results import result

from oar_lightning.evaluation.metrics import evaluation_metrics
from oar_lightning.evaluation.tables import accuracy_names, before_after_table


def test_the_table_shows_accuracies_only() -> None:
    metrics = evaluation_metrics([result([0, 1], 1, "1"), result([0, 0], 1, "2")])
    assert accuracy_names(metrics) == ["avg_at_2", "pass_at_2", "maj_at_2", "greedy"]
    text = "\n".join(rendered(before_after_table({"x": (metrics, metrics)})))
    assert text.count("+0.0 points") == 4
    assert "75.0 % [19.8, 97.3]" in text
