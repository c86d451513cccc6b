"""task=sync: what killed or cut-off runs left is delivered, and what cannot be is told."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from mlflow import MlflowClient
from support.composing import Prepare

from oar_lightning.tracking.delivery import Delivery
from oar_lightning.tracking.journal import Journal

AWAY = "http://127.0.0.1:9"
"""The discard port, where nothing listens."""


def left_behind(run: Path, uri: str, points: int = 3) -> Journal:
    """The journal of a run that recorded and delivered nothing."""
    journal = Journal(run / "tracking")
    first = {"experiment": "e", "artifact_location": None, "run_name": run.name, "run_id": None}
    journal.append("run", tracking_uri=uri, **first, tags={"journal": run.name})
    for step in range(points):
        journal.append("metrics", step=step, values={"reward": step / 3})
    journal.close()
    return journal


def rewards(store: str) -> dict[str, list[int]]:
    client = MlflowClient(store)
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    return {r.info.run_name: [m.step for m in client.get_metric_history(r.info.run_id, "reward")] for r in runs}


def test_all_runs_below_the_folder_are_delivered_once(
    prepared: Prepare, tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    left_behind(tmp_path / "outputs" / "a" / "seed0" / "one", store)
    left_behind(tmp_path / "outputs" / "multirun" / "0", store)
    assert prepared("task=sync")() == 8
    assert "2 runs, 8 records delivered now, 0 left" in capsys.readouterr().out
    assert prepared("task=sync", "sync.folder=outputs")() == 0
    assert capsys.readouterr().out.strip() == "2 runs, 0 records delivered now, 0 left"  # and no table of nothing
    assert rewards(store) == {"one": [0, 1, 2], "0": [0, 1, 2]}


def test_what_was_delivered_elsewhere_is_told(
    prepared: Prepare, tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    left_behind(tmp_path / "outputs" / "one", store)
    prepared("task=sync")()
    capsys.readouterr()
    other = f"sqlite:///{tmp_path / 'other.db'}"
    prepared("task=sync", f"sync.tracking_uri={other}")()
    shown = capsys.readouterr().out
    assert f"was delivered before, and nothing is sent to {other} now; to send all of it there remove " in shown
    (state,) = (tmp_path / "outputs").rglob("state.json")
    assert str(state.relative_to(tmp_path)) in shown
    state.unlink()
    assert prepared("task=sync", f"sync.tracking_uri={other}")() == 4
    assert rewards(other) == {"one": [0, 1, 2]}


def test_a_part_that_was_delivered_elsewhere_is_told(
    prepared: Prepare, tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "outputs" / "one"
    left_behind(folder, store)
    prepared("task=sync")()
    with contextlib.closing(Journal(folder / "tracking")) as journal:  # the run goes on, and its server is away
        journal.append("metrics", step=3, values={"reward": 1.0})
    other = f"sqlite:///{tmp_path / 'other.db'}"
    with pytest.raises(SystemExit):
        prepared("task=sync", f"sync.tracking_uri={other}")()
    shown = " ".join(capsys.readouterr().out.split())
    state = Path("outputs", "one", "tracking", "state.json")
    assert f"was begun in another store, remove {state} to send all of it to {other}" in shown


def test_a_torn_last_line_does_not_keep_the_rest(prepared: Prepare, tmp_path: Path, store: str) -> None:
    journal = left_behind(tmp_path / "outputs" / "one", store)
    with journal.path.open("a") as file:
        file.write('{"n": 4, "time"')
    assert prepared("task=sync")() == 4
    assert rewards(store) == {"one": [0, 1, 2]}


def test_what_is_left_is_in_the_table_and_exit_code_1(
    prepared: Prepare, tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    left_behind(tmp_path / "outputs" / "away", AWAY)
    left_behind(tmp_path / "outputs" / "here", store)
    with pytest.raises(SystemExit) as ended:
        prepared("task=sync")()
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "2 runs, 4 records delivered now, 4 left" in said
    assert "refused" in said.lower(), "the connection's error is the note"
    assert rewards(store) == {"here": [0, 1, 2]}
    assert prepared("task=sync", f"sync.tracking_uri={store}")() == 4, "the server has another address now"
    assert rewards(store) == {"here": [0, 1, 2], "away": [0, 1, 2]}


def test_a_running_process_keeps_its_journal(
    prepared: Prepare, tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    left_behind(tmp_path / "outputs" / "one", store)
    running = Journal(tmp_path / "outputs" / "one" / "tracking")
    with pytest.raises(SystemExit):
        prepared("task=sync")()
    assert "in use" in " ".join(capsys.readouterr().out.split())
    assert rewards(store) == {}
    running.close()
    assert prepared("task=sync")() == 4


def test_refused_records_stay_told(prepared: Prepare, tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    left_behind(tmp_path / "outputs" / "one", store)
    journal = Journal(tmp_path / "outputs" / "one" / "tracking")
    journal.append("metrics", step=9, values={"k" * 300: 1.0})
    journal.close()
    for delivered in (5, 0):
        with pytest.raises(SystemExit):
            prepared("task=sync")()
        assert f"{delivered} records delivered now, 1 left" in capsys.readouterr().out
    assert Delivery(tmp_path / "outputs" / "one" / "tracking").left() == 0


def test_a_missing_folder_is_an_error(prepared: Prepare) -> None:
    with pytest.raises(ValueError, match=r"sync.folder=nowhere: no such folder"):
        prepared("task=sync", "sync.folder=nowhere")
