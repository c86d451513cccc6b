"""Points that a killed and resumed run logged twice."""

from __future__ import annotations

import math
from typing import NamedTuple

from mlflow import MlflowClient
from mlflow.entities import Metric

from oar_lightning.tracking.history import Resumption, current_points, metric_history, resumptions


class P(NamedTuple):
    step: int
    timestamp: int
    value: float


def test_without_a_resumption_all_points_stay_in_order() -> None:
    points = [P(2, 30, 0.2), P(1, 20, 0.1), P(2, 40, 0.3)]
    assert current_points(points, []) == [P(1, 20, 0.1), P(2, 30, 0.2), P(2, 40, 0.3)]


def test_exact_repetitions_count_once_nan_too() -> None:
    points = [P(1, 20, math.nan), P(1, 20, math.nan), P(1, 20, 0.1), P(1, 20, 0.1)]
    assert len(current_points(points, [])) == 2


def test_what_was_thrown_away_is_dropped_by_every_resumption() -> None:
    """Steps 1..5, killed, again from 2: 3, 4, killed, again from 3: 4, 5."""
    first = [P(s, 10 * s, 0.0) for s in range(1, 6)]
    second = [P(3, 110, 1.0), P(4, 120, 1.0)]
    third = [P(4, 210, 2.0), P(5, 220, 2.0)]
    resumed = resumptions({"resumed.200": "3", "resumed.100": "2", "seed": "0"})
    assert resumed == [Resumption(100, 2), Resumption(200, 3)]
    kept = current_points([*third, *first, *second], resumed)
    assert [(p.step, p.value) for p in kept] == [(1, 0.0), (2, 0.0), (3, 1.0), (4, 2.0), (5, 2.0)]


def test_a_resumption_from_the_beginning_drops_step_0_too() -> None:
    kept = current_points([P(0, 10, 0.0), P(0, 20, 1.0)], resumptions(Resumption(20, -1).tag()))
    assert kept == [P(0, 20, 1.0)]


def test_it_reads_from_mlflow(store: str) -> None:
    client = MlflowClient(store)
    run_id = client.create_run("0", tags=Resumption(100, 1).tag()).info.run_id
    client.log_batch(run_id, metrics=[Metric("r", v, t, s) for s, t, v in [(1, 10, 0.1), (2, 20, 0.2), (2, 110, 0.5)]])
    assert [(m.step, m.value) for m in metric_history(client, run_id, "r")] == [(1, 0.1), (2, 0.5)]


def test_samples_of_the_machine_are_no_optimizer_steps(store: str) -> None:
    """A run of 3 samples until its checkpoint at step 1, and of 2 more after it was resumed."""
    client = MlflowClient(store)
    run_id = client.create_run("0", tags=Resumption(100, 1).tag()).info.run_id
    samples = [(0, 10, 0.1), (1, 20, 0.2), (2, 30, 0.3), (0, 110, 0.4), (1, 120, 0.5)]
    client.log_batch(run_id, metrics=[Metric("system/cpu", value, time, step) for step, time, value in samples])
    assert {m.value for m in metric_history(client, run_id, "system/cpu")} == {0.1, 0.2, 0.3, 0.4, 0.5}
