"""Trials with other problems than those before them are refused, which ends their sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oar_lightning.sweep.trial import FOLDER_VARIABLE, SweepRefused, Ticket, write_ticket
from oar_lightning.wiring.sweep_problems import check_problems_of_sweep

CHAIN: dict[str, Any] = {"data": {"name": "chain", "train": {"length": 4}}}
PROBLEMS = {"data.train": "aa", "data.evaluation.chain": "bb"}


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "trial_0000"
    folder.mkdir()
    write_ticket(folder, Ticket("mine", 0, 1, {"gate.tau": 0.4}, str(tmp_path / "optuna.db")))
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    return folder


def test_another_content_under_the_same_settings_is_refused_and_named(trial: Path) -> None:
    check_problems_of_sweep(CHAIN, PROBLEMS)
    check_problems_of_sweep({**CHAIN, "gate": {"tau": 0.9}}, PROBLEMS)
    with pytest.raises(SweepRefused, match=r"the content of data\.train is not what .*study_name=\.\.\."):
        check_problems_of_sweep(CHAIN, {**PROBLEMS, "data.train": "cc"})
    check_problems_of_sweep(CHAIN, PROBLEMS)


def test_a_sweep_over_the_data_has_each_of_them(trial: Path) -> None:
    for length, digest in ((4, "aa"), (5, "cc"), (4, "aa"), (5, "cc")):
        check_problems_of_sweep({"data": {"name": "chain", "train": {"length": length}}}, {**PROBLEMS, "data.train": digest})


def test_half_a_file_is_written_again(trial: Path) -> None:
    check_problems_of_sweep(CHAIN, PROBLEMS)
    (file,) = trial.parent.glob("study/problems_*.json")
    whole = file.read_text()
    file.write_text(whole[:10])
    check_problems_of_sweep(CHAIN, PROBLEMS)
    assert file.read_text() == whole


def test_other_runs_and_grids_keep_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_problems_of_sweep(CHAIN, PROBLEMS)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "0"))  # of a grid, whose jobs have no ticket
    check_problems_of_sweep(CHAIN, PROBLEMS)
    assert not list(tmp_path.iterdir())
