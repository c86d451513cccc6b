"""The logger while its server goes away, hangs, and comes back. The server is MLflow's own, over HTTP."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lightning as L
import pytest
from lightning.pytorch.demos.boring_classes import BoringModel
from mlflow import MlflowClient
from support.mlflow_stores import HttpStore
from support.ports import free_port

from oar_lightning.common.config_check import ConfigError
from oar_lightning.tracking.courier import Courier
from oar_lightning.tracking.delivery import Delivery
from oar_lightning.tracking.history import metric_history
from oar_lightning.tracking.journal import read_records
from oar_lightning.tracking.mlflow_logger import DurableMLFlowLogger
from oar_lightning.tracking.mlflow_store import MLflowConfig
from oar_lightning.tracking.tracker import Tracker

STEP = {f"metric_{i:02d}": i / 7 for i in range(45)}
"""As many metrics as a training step logs."""


@contextmanager
def logging_to(uri: str, run: Path, run_id: str | None = None, resume: bool = False, **options: object) -> Iterator[Tracker]:
    config = MLflowConfig(uri, run_name="r", deliver_every_s=0.1, **options)
    tracker = Tracker(run, DurableMLFlowLogger(config, run / "tracking", run_id, resume))
    tracker.start()
    try:
        yield tracker
    finally:
        tracker.close("FINISHED")


def points(client: MlflowClient, run_id: str | None, key: str = "reward") -> list[tuple[int, int, float]]:
    return [(m.step, m.timestamp, m.value) for m in client.get_metric_history(run_id, key)]


def written(run: Path, key: str = "reward") -> list[tuple[int, int, float]]:
    records = [record for record, _ in read_records(run / "tracking" / "journal.jsonl") if record["kind"] == "metrics"]
    return [(r["step"], r["time"], r["values"][key]) for r in records]


def wait_for(condition, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_server_that_goes_away_and_returns_misses_nothing(server: HttpStore, tmp_path: Path) -> None:
    client = MlflowClient(server.address)
    with logging_to(server.address, tmp_path) as tracker:
        tracker.describe({"gate": {"tau": 0.4}}, {"sweep": "tau"})
        slowest = 0.0
        for step in range(12):
            if step == 4:
                wait_for(lambda: len(points(client, tracker.run_id)) == 4)
                server.stop()
            if step == 9:
                server.start()
            started = time.thread_time()
            tracker.write_metrics({"reward": step / 7}, step)
            tracker.write_table(f"tables/{step}.json", {"a": [step]})
            slowest = max(slowest, time.thread_time() - started)
            time.sleep(0.06)
        run_id = tracker.run_id
    assert slowest < 0.05
    assert points(client, run_id) == written(tmp_path)
    assert [p[0] for p in written(tmp_path)] == list(range(12))
    run = client.get_run(run_id)
    assert (run.info.status, run.data.params, run.data.tags["sweep"]) == ("FINISHED", {"gate.tau": "0.4"}, "tau")
    assert len(client.list_artifacts(run_id, "tables")) == 12
    assert Delivery(tmp_path / "tracking").left() == 0


def test_a_server_that_hangs_holds_the_end_up_for_max_stall_s_only(
    server: HttpStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with logging_to(server.address, tmp_path, max_stall_s=0.5) as tracker:
        tracker.write_metrics({"reward": 1.0}, 1)
        wait_for(lambda: Delivery(tmp_path / "tracking").left() == 0)
        server.hang()
        tracker.write_metrics({"reward": 2.0}, 2)
        time.sleep(0.2)
        started = time.monotonic()
        tracker.close("FINISHED")
        assert time.monotonic() - started < 2.0
    assert "task=sync sync.folder=" in caplog.text
    server.wake()
    delivery = Delivery(tmp_path / "tracking")
    assert delivery.left() == 2
    delivery.deliver()
    client = MlflowClient(server.address)
    assert points(client, tracker.run_id) == written(tmp_path)
    assert client.get_run(tracker.run_id).info.status == "FINISHED"


def test_no_server_at_the_start_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    logger = DurableMLFlowLogger(MLflowConfig(address), tmp_path / "tracking")
    for act in (logger.check, logger.start):
        with pytest.raises(ConfigError, match=rf"logger.tracking_uri={address} .*logger.offline_start=true"):
            act()
    assert not (tmp_path / "tracking").exists(), "task=sync would make a run of it"


def test_a_trainer_starts_while_the_server_is_away(tmp_path: Path) -> None:
    """It asks each logger whether it has an `experiment`, and takes an `AttributeError` alone for a no."""
    address = f"http://127.0.0.1:{free_port()}"
    logger = DurableMLFlowLogger(MLflowConfig(address, offline_start=True, max_stall_s=0.3), tmp_path / "tracking")
    logger.start()
    try:
        with pytest.raises(AttributeError, match=f"{address} is away"):
            _ = logger.experiment
        quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = L.Trainer(logger=logger, accelerator="cpu", max_steps=1, limit_val_batches=0, **quiet)
        trainer.fit(BoringModel())
        assert trainer.global_step == 1
    finally:
        logger.close("FINISHED")


def test_offline_start_makes_the_run_when_the_server_comes(stopped_server: HttpStore, tmp_path: Path) -> None:
    with logging_to(stopped_server.address, tmp_path, offline_start=True, max_stall_s=0.3) as tracker:
        assert tracker.run_id is None
        tracker.write_metrics({"reward": 1.0}, 1)
    stopped_server.start()
    with logging_to(stopped_server.address, tmp_path, resume=True) as again:
        again.reopen(1)
        again.write_metrics({"reward": 2.0}, 2)
        run_id = again.run_id
    client = MlflowClient(stopped_server.address)
    assert points(client, run_id) == written(tmp_path)
    first = next(read_records(tmp_path / "tracking" / "journal.jsonl"))[0]
    assert client.get_run(run_id).info.start_time == first["time"]


def test_a_resumed_run_is_the_same_run_and_readers_see_each_step_once(store: str, tmp_path: Path) -> None:
    """Ended after step 5, resumed from step 3."""
    client = MlflowClient(store)
    with logging_to(store, tmp_path) as tracker:
        for step in range(6):
            tracker.write_metrics({"reward": float(step)}, step)
        run_id = tracker.run_id
    with logging_to(store, tmp_path, run_id, resume=True) as tracker:
        tracker.reopen(3)
        assert tracker.run_id == run_id
        for step in range(4, 8):
            tracker.write_metrics({"reward": 100.0 + step}, step)
    assert points(client, run_id) == written(tmp_path), "nothing is thrown away"
    kept = [(m.step, m.value) for m in metric_history(client, str(run_id), "reward")]
    assert kept == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 104.0), (5, 105.0), (6, 106.0), (7, 107.0)]


def test_a_run_that_goes_on_in_another_store_is_told_where_it_was_recorded(
    store: str, empty_store: Callable[[Path], str], tmp_path: Path
) -> None:
    with logging_to(store, tmp_path) as tracker:
        run_id = tracker.run_id
    (tmp_path / "other").mkdir()
    other = empty_store(tmp_path / "other")
    told = rf"tracking_uri={other} cannot be used \(.*{run_id}.*\); the run is in {store}: give that address, record now"
    with pytest.raises(ConfigError, match=told), logging_to(other, tmp_path, run_id, resume=True):
        pass
    with logging_to(store, tmp_path, run_id, resume=True) as again:
        assert again.run_id == run_id
    gone, third = "0" * 32, tmp_path / "third"
    third.mkdir()
    with pytest.raises(ConfigError, match=rf"{gone}.*; start the server or correct"), logging_to(store, third, gone):
        pass


def test_a_new_run_in_an_old_folder_keeps_the_old_journal(store: str, tmp_path: Path) -> None:
    with logging_to(store, tmp_path) as first:
        first.write_metrics({"reward": 1.0}, 1)
    with logging_to(store, tmp_path) as second:
        assert second.run_id != first.run_id
    assert Delivery(tmp_path / "tracking-1").state.run_id == first.run_id


def test_a_journal_in_use_is_an_error(store: str, tmp_path: Path) -> None:
    with logging_to(store, tmp_path):
        logger = DurableMLFlowLogger(MLflowConfig(store), tmp_path / "tracking", resume=True)
        with pytest.raises(ConfigError, match="in use by another process; wait"):
            logger.start()


def test_metrics_of_other_alphabets_stay_apart(tmp_path: Path) -> None:
    values = {"rewards/数学": 0.1, "rewards/物理": 0.9, "rewards/a+b": 0.2}
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with logging_to(store, tmp_path / "run") as tracker:
        tracker.write_metrics(values, 0)
        run_id = tracker.run_id
    kept = {**values, "rewards/a_b": values["rewards/a+b"]}
    del kept["rewards/a+b"]
    assert MlflowClient(store).get_run(run_id).data.metrics == kept


def test_a_policy_is_registered_by_a_server(server: HttpStore, tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    with logging_to(server.address, tmp_path, register_as="ours") as tracker:
        tracker.register(tmp_path / "policy", 4)
        run_id = tracker.run_id
    (version,) = MlflowClient(server.address).search_model_versions("name = 'ours'")
    assert (version.run_id, version.source) == (run_id, f"runs:/{run_id}/policy/step_000004")


def test_the_machines_load_goes_through_the_journal(store: str, tmp_path: Path) -> None:
    with logging_to(store, tmp_path, system_metrics=True) as tracker:
        run_id = tracker.run_id
    key = "system/system_memory_usage_percentage"
    assert points(MlflowClient(store), run_id, key) == written(tmp_path, key)
    ((step, _, percent),) = written(tmp_path, key)
    assert step == 0
    assert 0 < percent < 100


def test_the_courier_tries_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away:
        tracking_uri = "nowhere"

        def deliver(self) -> int:
            tries.append(time.monotonic())
            raise ConnectionError

    tries: list[float] = []
    courier = Courier(Away(), every_s=0.02)  # type: ignore[arg-type]
    courier.start()
    wait_for(lambda: len(tries) == 5)
    assert not courier.flush(1.0), "it is asked for, so it is tried at once"
    courier.stop()
    courier.join(5.0)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries[:5])]
    assert all(pause >= 0.02 * 2 ** (i + 1) for i, pause in enumerate(pauses))


def test_a_call_and_its_delivery_cost_less_than_3_percent_of_a_step(store: str, tmp_path: Path) -> None:
    """The default run's step takes about 1.4 s (reports/main_job); the time is the processor's, which load does not change."""
    steps = 40
    with logging_to(store, tmp_path, max_stall_s=60.0) as tracker:
        started = time.thread_time()
        for step in range(steps):
            tracker.write_metrics(STEP, step)
        calls = time.thread_time() - started
    logger = tracker.logger
    assert logger is not None
    assert calls / steps < 0.03 * 1.4 / 10
    assert (calls + logger.delivery_cpu_s) / steps < 0.03 * 1.4
