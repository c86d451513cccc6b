"""The command as a user runs it: bad configs end it at once, with a message and no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import run

from oar_lightning.common.locks import FileLock


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("+sed=1", "unknown key sed; did you mean seed?"),  # ours, before the slow imports
        ("gate.tua=0.4", "gate.tua"),  # Hydra's
        ("audit.files=[x]", "audit is read by task=audit only"),  # Hydra's, and what to do about it
        ("gate.tau=1.4", "a normalised score) and must be in [0, 1], got 1.4"),  # a target's
    ],
)
def test_a_bad_config_is_one_message_and_exit_code_1(tmp_path: Path, argument: str, expected: str) -> None:
    done = run(tmp_path, argument)
    assert done.code == 1
    assert "Traceback" not in done.shown
    assert expected in done.shown
    assert len(done.shown.splitlines()) <= 8
    assert not (tmp_path / "mlflow.db").exists(), "a run that cannot start leaves no trace in MLflow"


def test_hydra_verbose_shows_the_traceback(tmp_path: Path) -> None:
    done = run(tmp_path, "+sed=1", "hydra.verbose=true")
    assert done.code == 1
    assert "unknown key sed" in done.shown


def test_the_composed_config_can_be_printed(tmp_path: Path) -> None:
    done = run(tmp_path, "+experiment=oar_g", "gate.tau=0.3", "--cfg", "job")
    assert done.code == 0
    for line in ("name: oar_g", "  _target_: oar_lightning.credit.scorers.OarG", "  tau: 0.3"):
        assert line in done.stdout.splitlines()
    assert not list(tmp_path.iterdir())


def test_evaluating_files_needs_no_training_data(tmp_path: Path) -> None:
    rows = [{"question": "Ann has 9 apples. Ann drops 6. How many apples are left?", "answer": "3"}]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    columns = ["data.train.question_column=question", "data.train.solution_column=null"]
    evaluation = ["evaluation.samples=2", "logger=none", "data.evaluation.test.paths=own.jsonl"]
    done = run(tmp_path, "task=evaluate", "data=files", *columns, *evaluation)
    assert done.code == 0, done.shown
    assert "avg_at_2" in done.stdout


def test_a_folder_in_which_a_run_is_at_work_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    with FileLock(folder / "run.lock"):
        done = run(tmp_path, "+experiment=smoke", f"hydra.run.dir={folder}")
    assert done.code == 1
    assert f"another process is at work in {folder}" in done.shown
    assert "Traceback" not in done.shown
    assert not (tmp_path / "mlflow.db").exists()
