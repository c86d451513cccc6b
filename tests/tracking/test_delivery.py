"""Delivery to a real store: everything, in order, with its times, and once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from oar_lightning.tracking.delivery import Delivery, NotUploaded
from oar_lightning.tracking.journal import Journal, State, read_records

FIRST = {"experiment": "e", "artifact_location": None, "run_name": "first", "run_id": None}


@pytest.fixture
def journal(tmp_path: Path, store: str) -> Journal:
    """The journal of a run that logged something of every kind."""
    run = tmp_path / "run"
    (run / "artifacts" / "tables").mkdir(parents=True)
    (run / "artifacts" / "config.yaml").write_text("tau: 0.4")
    (run / "artifacts" / "tables" / "a.json").write_text('{"columns": [], "data": []}')
    journal = Journal(run / "tracking")
    location = str(tmp_path / "mlartifacts")
    tags = {"journal": "j1", "sweep": "tau"}
    journal.append("run", tracking_uri=store, **{**FIRST, "artifact_location": location}, tags=tags)
    journal.append("params", values={"gate.tau": "0.4", "long": "x" * 7000})
    journal.append("tags", values={"trial_state": "running"})
    journal.append("artifact", path="artifacts/config.yaml", folder="")
    for step in range(5):
        values = {"reward": step / 3, "nothing": math.nan, "much": math.inf}
        journal.append("metrics", step=step, values=values)
    journal.append("table", path="artifacts/tables/a.json", folder="tables")
    journal.append("tags", values={"trial_state": "complete"})
    journal.append("metrics", step=4, values={"objective": 0.5})
    journal.append("status", status="FINISHED")
    return journal


def contents(store: str) -> list[dict[str, Any]]:
    """Everything a store holds of each run but what delivery did not decide."""
    client = MlflowClient(store)
    found = []
    for run in client.search_runs([e.experiment_id for e in client.search_experiments()]):
        history = {
            key: [(m.step, m.timestamp, repr(m.value)) for m in client.get_metric_history(run.info.run_id, key)]
            for key in run.data.metrics
        }
        found.append(
            {
                "params": run.data.params,
                "tags": run.data.tags,
                "metrics": history,
                "files": sorted(f.path for d in ("", "tables") for f in client.list_artifacts(run.info.run_id, d)),
                "status": (run.info.status, run.info.start_time, run.info.end_time),
            }
        )
    return found


def test_everything_arrives_with_its_time(journal: Journal, store: str) -> None:
    delivery = Delivery(journal.path.parent)
    assert delivery.deliver() == journal.end.records
    assert delivery.left() == delivery.refused() == 0
    (run,) = contents(store)
    written = [record for record, _ in read_records(journal.path)]
    times = [r["time"] for r in written if r["kind"] == "metrics"][:5]
    assert run["metrics"]["reward"] == [(s, times[s], repr(s / 3)) for s in range(5)]
    assert [value for _, _, value in run["metrics"]["nothing"]] == ["nan"] * 5
    assert run["params"]["gate.tau"] == "0.4"
    assert run["params"]["long"] == "x" * 6000
    assert run["tags"]["trial_state"] == "complete"
    assert json.loads(run["tags"]["mlflow.loggedArtifacts"]) == [{"path": "tables/a.json", "type": "table"}]
    assert run["files"] == ["config.yaml", "tables", "tables/a.json"]
    assert run["status"] == ("FINISHED", written[0]["time"], written[-1]["time"])


def test_a_crash_between_delivering_and_noting_doubles_nothing(journal: Journal, store: str) -> None:
    folder = journal.path.parent
    Delivery(folder).deliver()
    once = contents(store)
    run_id = State.load(folder).run_id
    places = [State(), *(State(place.records, place.bytes, run_id) for _, place in read_records(journal.path))]
    for place in [*places, State(0, 0, None)]:  # as if the crash had come after noting this much
        place.save(folder)
        Delivery(folder).deliver()
        assert contents(store) == once


def test_delivery_goes_on_where_it_stopped(journal: Journal, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    delivery = Delivery(journal.path.parent)

    send = delivery.client.log_batch

    def away(run_id: str, metrics: Any = (), **others: Any) -> None:
        if metrics:
            raise MlflowException("API request failed")
        send(run_id, **others)

    with monkeypatch.context() as patched:
        patched.setattr(delivery.client, "log_batch", away)
        with pytest.raises(MlflowException):
            delivery.deliver()
    assert delivery.left() == journal.end.records - 4
    assert Delivery(journal.path.parent).deliver() == journal.end.records - 4
    assert [m[0] for m in contents(store)[0]["metrics"]["reward"]] == [0, 1, 2, 3, 4]


def test_what_mlflow_refuses_is_kept_aside_and_does_not_block(journal: Journal, store: str) -> None:
    journal.append("metrics", step=5, values={"k" * 300: 1.0, "reward": 2.0})
    journal.append("artifact", path="artifacts/gone.txt", folder="")
    journal.append("tags", values={"after": "yes"})
    delivery = Delivery(journal.path.parent)
    delivery.deliver()
    (run,) = contents(store)
    assert run["metrics"]["reward"][-1][2] == "2.0", "its neighbour in the same record is delivered"
    assert run["tags"]["after"] == "yes"
    assert (delivery.left(), delivery.refused()) == (0, 2)
    kept = [json.loads(line) for line in (journal.path.parent / "refused.jsonl").read_text().splitlines()]
    assert list(kept[0]["record"]["values"]) == ["k" * 300]
    assert "gone.txt is no longer there" in kept[1]["reason"]


def test_files_that_cannot_be_uploaded_block_nothing_and_are_tried_again(
    journal: Journal, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the client of a store of artifacts in S3 has no credentials, or is not installed."""

    def no_client(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'boto3'")

    delivery = Delivery(journal.path.parent)
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_artifact", no_client)
        for _ in range(2):
            with pytest.raises(NotUploaded, match=r"2 files or folders cannot be uploaded \(No module named 'boto3'\)"):
                delivery.deliver()
            assert (delivery.left(), delivery.refused()) == (2, 0)
        (run,) = contents(store)
        assert (len(run["metrics"]["reward"]), run["tags"]["trial_state"], run["status"][0]) == (5, "complete", "FINISHED")
        assert run["files"] == []
        patch.setattr(MlflowClient, "get_run", no_client)  # the server is away, too: nothing more is put aside
        journal.append("artifact", path="artifacts/config.yaml", folder="again")
        with pytest.raises(ModuleNotFoundError):
            delivery.deliver()
        assert len((journal.path.parent / "later.jsonl").read_text().splitlines()) == 2
    assert Delivery(journal.path.parent).deliver() == 3
    (run,) = contents(store)
    assert run["files"] == ["again", "config.yaml", "tables", "tables/a.json"]
    assert Delivery(journal.path.parent).left() == 0


def test_the_ui_lists_the_newest_tables_that_a_tag_can_name(journal: Journal, store: str) -> None:
    """MLflow cuts a longer one in silence, and what was cut is no list."""
    folder = journal.path.parent
    Delivery(folder).deliver()
    client = MlflowClient(store)
    run_id = State.load(folder).run_id
    client.set_tag(run_id, "mlflow.loggedArtifacts", '[{"path": "tables/a.json", "ty')
    for number in range(120):
        path = folder.parent / "artifacts" / "tables" / f"completions_of_a_long_name_{number:04d}.json"
        path.write_text("{}")
        journal.append("table", path=f"artifacts/tables/{path.name}", folder="tables")
    journal.append("metrics", step=9, values={"reward": 1.0})
    delivery = Delivery(folder)
    delivery.deliver()
    assert (delivery.left(), delivery.refused()) == (0, 0)
    data = client.get_run(run_id).data
    assert data.metrics["reward"] == 1.0
    assert len(data.tags["mlflow.loggedArtifacts"]) <= 5000
    listed = [entry["path"] for entry in json.loads(data.tags["mlflow.loggedArtifacts"])]
    newest = [f"tables/completions_of_a_long_name_{number:04d}.json" for number in range(120)]
    assert 50 < len(listed) < 120
    assert listed == newest[-len(listed) :]


class NoJson(OSError, ValueError):
    """As `requests` raises it."""


def test_a_record_that_cannot_be_read_blocks_nothing(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of a server that is no JSON is no fault of the record's: it is tried again."""
    delivery = Delivery(journal.path.parent)

    def failing(error: Exception) -> None:
        def params(*_: Any) -> None:
            raise error

        monkeypatch.setitem(delivery._send, "params", params)

    failing(NoJson("<html>"))
    with pytest.raises(NoJson):
        delivery.deliver()
    failing(ValueError("a fault of ours"))
    delivery.deliver()
    assert (delivery.left(), delivery.refused()) == (0, 2), "of both parameters"


def test_records_of_a_deleted_run_wait_for_its_return(journal: Journal, store: str) -> None:
    delivery = Delivery(journal.path.parent)
    delivery.deliver()
    client, run_id = MlflowClient(store), str(delivery.state.run_id)
    client.delete_run(run_id)
    journal.append("tags", values={"late": "yes"})
    with pytest.raises(MlflowException, match="active"):
        delivery.deliver()
    assert (delivery.left(), delivery.refused()) == (1, 0)
    client.restore_run(run_id)
    assert delivery.deliver() == 1


def test_parameters_of_the_first_start_stay(journal: Journal, store: str, caplog: pytest.LogCaptureFixture) -> None:
    journal.append("params", values={"gate.tau": "0.9", "new": "1"})
    Delivery(journal.path.parent).deliver()
    (run,) = contents(store)
    assert (run["params"]["gate.tau"], run["params"]["new"]) == ("0.4", "1")
    assert "'gate.tau': ('0.4', '0.9')" in caplog.text


def test_a_run_made_elsewhere_is_gone_on_with(tmp_path: Path, store: str) -> None:
    client = MlflowClient(store)
    run_id = client.create_run(client.create_experiment("e")).info.run_id
    journal = Journal(tmp_path / "run" / "tracking")
    journal.append("run", tracking_uri=store, **{**FIRST, "run_id": run_id}, tags={"journal": "j"})
    journal.append("metrics", step=1, values={"reward": 1.0})
    assert Delivery(journal.path.parent).deliver() == 2
    assert client.get_run(run_id).data.metrics["reward"] == 1.0


DATASET = {
    **dict.fromkeys(("source", "schema", "profile"), "{}"),
    **{"name": "chain", "digest": "abc", "source_type": "config", "context": "train"},
}


def test_datasets_are_inputs_of_the_run(journal: Journal, store: str) -> None:
    journal.append("datasets", datasets=[DATASET, {**DATASET, "digest": "abd", "context": "evaluation"}])
    Delivery(journal.path.parent).deliver()
    (journal.path.parent / "state.json").unlink()
    again = Delivery(journal.path.parent)
    again.deliver()
    inputs = again.client.get_run(again.open_run()).inputs.dataset_inputs
    assert sorted((i.dataset.name, i.dataset.digest, i.tags[0].value) for i in inputs) == [
        ("chain", "abc", "train"),
        ("chain", "abd", "evaluation"),
    ]
    assert again.refused() == 0


def test_a_policy_becomes_one_version_however_often_it_is_delivered(journal: Journal, tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "model.safetensors").write_bytes(b"weights")
    for step in (4, 8):
        journal.append("register", model="it's mine", path=str(policy), folder=f"policy/step_{step:06d}")
    Delivery(journal.path.parent).deliver()
    (journal.path.parent / "state.json").unlink()
    again = Delivery(journal.path.parent)
    again.deliver()
    run_id = again.open_run()
    versions = again.client.search_model_versions(f"run_id = '{run_id}'")
    assert sorted((v.name, int(v.version), v.source) for v in versions) == [
        ("it's mine", 1, f"runs:/{run_id}/policy/step_000004"),
        ("it's mine", 2, f"runs:/{run_id}/policy/step_000008"),
    ]
    assert [f.path for f in again.client.list_artifacts(run_id, "policy/step_000008")] == [
        "policy/step_000008/model.safetensors"
    ]


def test_a_policy_that_is_gone_is_refused_and_blocks_nothing(journal: Journal, tmp_path: Path) -> None:
    journal.append("register", model="m", path=str(tmp_path / "gone"), folder="policy/step_000004")
    journal.append("tags", values={"after": "it"})
    delivery = Delivery(journal.path.parent)
    delivery.deliver()
    assert (delivery.left(), delivery.refused()) == (0, 1)
    assert delivery.client.get_run(delivery.open_run()).data.tags["after"] == "it"


def test_main_metrics_are_delivered_twice_and_recorded_once(journal: Journal, store: str) -> None:
    Delivery(journal.path.parent).deliver()
    (run,) = contents(store)
    assert run["metrics"]["Main/reward"] == run["metrics"]["reward"]
    assert "Main" not in journal.path.read_text()
