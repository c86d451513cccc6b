"""Runs of before a metric was renamed."""

from __future__ import annotations

from mlflow import MlflowClient
from mlflow.entities import Metric

from oar_lightning.reporting.runs import read_curves, record
from oar_lightning.tracking.history import Resumption, metric_history
from oar_lightning.tracking.metric_table import entries_of
from oar_lightning.tracking.renamed import RENAMED, by_current_name, current_name


def test_a_run_that_was_resumed_since_is_read_as_one(store: str) -> None:
    """Steps 1 to 3 by the old version, from 2 on by the new one."""
    client = MlflowClient(store)
    run_id = client.create_run("0", tags=Resumption(100, 1).tag()).info.run_id
    old = [Metric("step_time", float(s), 10 * s, s) for s in (1, 2, 3)] + [Metric("duration_s", 6.0, 30, 3)]
    new = [Metric("time/step_s", 10.0 * s, 100 + s, s) for s in (2, 3)] + [Metric("time/total_s", 60.0, 110, 3)]
    client.log_batch(run_id, metrics=[*old, *new])
    assert [(m.step, m.value) for m in metric_history(client, run_id, "time/step_s")] == [(1, 1.0), (2, 20.0), (3, 30.0)]
    run = record(client.get_run(run_id))
    assert run.duration_s == 60.0
    curve = read_curves(client, [run], ["time/step_s"])["time/step_s"][run_id]
    assert curve.values.tolist() == [1.0, 20.0, 30.0]


def test_values_have_todays_names() -> None:
    assert by_current_name({"duration_s": 1.0, "objective": 0.5}) == {"time/total_s": 1.0, "objective": 0.5}
    assert by_current_name({"time/total_s": 2.0, "duration_s": 1.0}) == {"time/total_s": 2.0}
    assert current_name("reward") == "reward"


def test_todays_names_are_in_the_table_and_former_ones_are_not() -> None:
    assert all(len(entries_of(name)) == 1 and not entries_of(former) for former, name in RENAMED.items())
