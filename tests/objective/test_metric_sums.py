"""Sums of metrics over micro-batches."""

from __future__ import annotations

from oar_lightning.objective.metric_sums import MetricSums


def test_metric_sums_add_up_micro_batches():
    sums = MetricSums()
    assert sums.means() == {}
    sums.add({"a": (3.0, 2.0), "b": (0.0, 0.0)})
    sums.add({"a": (7.0, 3.0), "c": (-1.0, 4.0)})
    assert sums.means() == {"a": 2.0, "c": -0.25}
