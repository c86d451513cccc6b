"""task=decontaminate: the table and the file hold what a reader counts by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.composing import Prepare

from oar_lightning.common.config_check import ConfigError

LONG = "a train leaves the station at nine and another one leaves it at ten every morning"


def write(path: Path, questions: list[str]) -> Path:
    rows = [{"problem": q, "answer": "1", "solution": "", "id": f"{path.stem}{i}"} for i, q in enumerate(questions)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    train = write(tmp_path / "train.jsonl", ["Two plus two?", f"Once {LONG}.", "Unseen.", "two, plus two"])
    test = write(tmp_path / "test.jsonl", ["TWO plus two", f"Now {LONG}!", "Other."])
    return ["task=decontaminate", "data=files", f"data.train.paths={train}", f"data.evaluation.test.paths={test}"]


def test_counts_findings_and_the_file(
    tmp_path: Path, files: list[str], prepared: Prepare, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "overlap.json"
    # evaluation.problems bounds what is evaluated, not what is compared
    assert prepared(*files, f"decontaminate.output={output}", "evaluation.problems=1")() == 3.0
    shown = capsys.readouterr().out
    assert "3 of 4 training problems are in an evaluation set" in shown
    assert [cell.strip() for cell in next(line for line in shown.splitlines() if " test " in line).strip("│").split("│")] == [
        "test",
        "3",
        "2",
        "1",
    ]
    assert json.loads(output.read_text()) == {
        "train_problems": 4,
        "contaminated": 3,
        "benchmarks": {"test": {"problems": 3, "exact": 2, "13-gram": 1}},
        "findings": [
            {"train": "train0", "benchmark": "test", "problem": "test0", "kind": "exact"},
            {"train": "train1", "benchmark": "test", "problem": "test1", "kind": "13-gram"},
            {"train": "train3", "benchmark": "test", "problem": "test0", "kind": "exact"},
        ],
    }


def test_without_an_output_there_is_the_table_only(tmp_path: Path, files: list[str], prepared: Prepare) -> None:
    before = set(tmp_path.rglob("*"))
    assert prepared(*files, "decontaminate.output=null")() == 3.0
    assert set(tmp_path.rglob("*")) == before


def test_generated_problems_can_be_held_out_but_not_compared(tmp_path: Path, files: list[str], prepared: Prepare) -> None:
    work = prepared(*files[:3], "data/evaluation=[chain]", "evaluation.problems=20")
    assert work() == 0.0
    with pytest.raises(ConfigError, match=r"those of data=chain have no end; choose a finite set, e\.g\. data=math"):
        prepared("task=decontaminate")
    with pytest.raises(ConfigError, match=r"data=aime24 is for evaluation only"):
        prepared("task=decontaminate", "data=aime24")


def test_what_cannot_be_done_is_told_before_the_work(tmp_path: Path, files: list[str], prepared: Prepare) -> None:
    with pytest.raises(ConfigError, match=r"data\.evaluation names no evaluation set to compare with"):
        prepared(*files, "~data.evaluation.test")
    with pytest.raises(ConfigError, match=r"decontaminate\.output=.* is a folder; give a file"):
        prepared(*files, f"decontaminate.output={tmp_path}")
