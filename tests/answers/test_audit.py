"""The audit: counts by hand on small files, errors that name the line, and the command."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import run
from support.composing import composed

from oar_lightning.answers.audit import audit, read_rows
from oar_lightning.answers.span import AnswerFormat
from oar_lightning.answers.verifier import Verifier, VerifierConfig
from oar_lightning.common.paths import files_of
from oar_lightning.tasks.audit import names_of, prepare
from oar_lightning.tasks.audit import run as run_task


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    verifier = Verifier(VerifierConfig(timeout_s=5.0))  # a busy machine makes others than the one that hangs a timeout at 1
    yield verifier
    verifier.close()


def write(path: Path, rows: list[Any]) -> Path:
    text = "\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


PROBLEMS = [
    {"id": "a", "solution": "So \\boxed{18}.", "answer": "18"},
    {"id": "b", "solution": "3 + 4 = 7\n#### 7", "answer": 7},
    {"id": "c", "solution": "So it is 5.", "answer": "5"},
    {"id": "d", "solution": "So \\boxed{6}.", "answer": "5"},
    {"id": "e", "solution": "So \\boxed{6}.", "answer": ""},
    {"id": "f", "answer": "\\frac{1}{2}"},
]


def test_problems(tmp_path: Path, verifier: Verifier) -> None:
    seen: list[int] = []
    rows = read_rows(write(tmp_path / "p.jsonl.gz", PROBLEMS))
    found = audit("p", rows, AnswerFormat(), verifier, seen.append).to_json()
    seconds = found.pop("seconds")
    assert 0 < seconds < 10
    assert found.pop("misses") == [
        {"id": "c", "gold": "5", "stated": None, "verdict": "correct", "reason": "no answer marker"},
        {"id": "d", "gold": "5", "stated": "6", "verdict": "incorrect", "reason": "not judged equal"},
        {"id": "e", "gold": "", "stated": "6", "verdict": "incorrect", "reason": "no gold answer"},
    ]
    assert found == {
        "file": "p",
        "rows": 6,
        "with_gold": 5,
        "extracted": 4,
        "verified": 2,
        "gold_only": 2,
        "no_marker": 1,
        "unparseable": 0,
        "timeouts": 0,
    }
    assert seen == [6]


OUTPUTS = [
    {"id": "tp", "completion": "A: 18", "answer": "18", "is_correct": True},
    {"id": "tn", "completion": "\\boxed{7}", "answer": "18", "is_correct": False},
    {"id": "fn", "completion": "\\boxed{7}", "answer": "18", "is_correct": True},
    {"id": "fp", "completion": "\\boxed{18}", "answer": "18", "is_correct": False},
    {"id": "none", "completion": "I do not know", "answer": "18", "is_correct": False},
    {"id": "cut", "completion": "A: 1", "answer": "1", "is_correct": False, "truncated": True},
    {"id": "long", "completion": "\\boxed{" + "1" * 2000 + "}", "answer": "1", "is_correct": False},
    {"id": "tower", "completion": "\\boxed{9^{9^{9^{9}}}}", "answer": "1", "is_correct": False},
    {"id": "unlabelled", "completion": "\\boxed{18}", "answer": "18"},
]


def test_labelled_outputs(tmp_path: Path, verifier: Verifier) -> None:
    found = audit("o", read_rows(write(tmp_path / "o.jsonl", OUTPUTS)), AnswerFormat(), verifier).to_json()
    assert [found[k] for k in ("tp", "fp", "fn", "tn")] == [1, 1, 1, 5]
    assert found["agreement"] == 6 / 8
    assert [d["id"] for d in found["disagreements"]] == ["fn", "fp"]
    assert [m["id"] for m in found["misses"]] == ["none", "cut"]
    counts = ("rows", "with_gold", "extracted", "verified", "no_marker", "unparseable", "timeouts")
    assert [found[k] for k in counts] == [9, 9, 7, 3, 2, 1, 1]
    assert found["gold_only"] == 0


def test_labels_of_rows_without_a_gold_answer_say_nothing_of_the_verifier(tmp_path: Path, verifier: Verifier) -> None:
    rows = [{"completion": "\\boxed{3}", "answer": gold, "is_correct": True} for gold in (None, "", float("nan"), "3")]
    found = audit("o", read_rows(write(tmp_path / "o.jsonl", rows)), AnswerFormat(), verifier).to_json()
    assert [found[k] for k in ("tp", "fp", "fn", "tn", "with_gold")] == [1, 0, 0, 0, 1]
    assert found["agreement"] == 1
    assert [m["reason"] for m in found["misses"]] == ["no gold answer"] * 3
    without = audit("o", read_rows(write(tmp_path / "n.jsonl", rows[:3])), AnswerFormat(), verifier).to_json()
    assert "agreement" not in without


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"audit\.files: .*e\.jsonl has no row"):
        read_rows(write(tmp_path / "e.jsonl", []))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "is not JSON"),
        ([1], "has neither completion, solution nor answer"),
        ({"problem": "q"}, "has neither completion, solution nor answer"),
        ({"completion": "x"}, "has a completion but no answer"),
        ({"completion": "x", "answer": "1", "is_correct": "yes"}, "is_correct must be true, false or null, got 'yes'"),
        ({"completion": "x", "answer": "1", "truncated": "false"}, "truncated must be true, false or null, got 'false'"),
        ({"completion": ["x"], "answer": "1"}, "completion must be a text, got \\['x'\\]"),
        ({"solution": 3, "answer": "1"}, "solution must be a text, got 3"),
        ({"completion": "x", "answer": ["1"]}, "answer must be a text or a number, got \\['1'\\]"),
        ({"response": "x", "answer": "1", "is_correct": True}, "is_correct=True.* but no completion; name the output's column"),
        ({"answer": "2+3=5\n#### 5"}, "answer holds a worked solution, which ends with '5', .*; call that column solution"),
        ({"completion": "x", "answer": True}, "answer must be a text or a number, got True"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, row: Any, reason: str) -> None:
    path = write(tmp_path / "x.jsonl", [PROBLEMS[0], row])
    with pytest.raises(ValueError, match=reason) as error:
        read_rows(path)
    assert str(error.value).startswith((f"audit.files: {path}:2 ", f"audit.files: {path}:2: "))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"audit\.files: .*gone\.jsonl cannot be read"):
        read_rows(tmp_path / "gone.jsonl")
    for name in ("up.jsonl.GZ", "plain.jsonl"):  # gzip, whatever it is called
        (tmp_path / name).write_bytes(gzip.compress(b'{"answer": "1"}\n' * 3))
        assert len(read_rows(tmp_path / name)) == 3
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(gzip.compress(b'{"answer": "1"}\n' * 99)[:-9])
    with pytest.raises(ValueError, match=r"torn\.jsonl\.gz cannot be read"):
        read_rows(torn)


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_one_object_a_file(tmp_path: Path) -> None:
    write(tmp_path / "p.jsonl.gz", PROBLEMS)
    quick = [row for row in OUTPUTS if row["id"] != "tower"]  # which takes a worker its whole time
    write(tmp_path / "o.jsonl", quick)
    done = run(tmp_path, "task=audit", "audit.files=[p.jsonl.gz,o.jsonl]", "audit.output=deep/out.json")
    assert done.code == 0, done.shown
    assert "71.43 %" in done.stdout
    assert "not judged equal" in done.stdout
    first, second = json.loads((tmp_path / "deep" / "out.json").read_text())
    assert (first["file"], first["rows"], second["file"], second["rows"]) == ("p.jsonl.gz", 6, "o.jsonl", 8)
    assert "agreement" not in first
    assert second["agreement"] == 5 / 7


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "audit.files is empty; name JSONL files"),
        (["audit.files=[p.jsonl]", "audit.output=p.jsonl/out.json"], "audit.output=p.jsonl/out.json cannot be written"),
        (["audit.files=[gone.jsonl]"], "audit.files=gone.jsonl: no such file; give JSONL files (gzip too) or patterns"),
        (["audit.files=p.jsonl", "audit.output=p.jsonl"], "audit.output=p.jsonl exists; remove it or name another file"),
    ],
)
@pytest.mark.usefixtures("hydra_conf")
def test_bad_settings_are_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "p.jsonl", PROBLEMS)
    cfg = composed("task=audit", *overrides)
    with pytest.raises(ValueError, match=re.escape(message)):
        prepare(cfg)


def test_a_terminal_gets_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        tmp_path / "x.jsonl", [{"id": "a\u009b31m\u202eb", "answer": "2", "completion": "\\boxed{3}", "is_correct": True}]
    )
    run_task({str(path): read_rows(path)}, AnswerFormat(), VerifierConfig(), None)
    shown = capsys.readouterr().out
    assert "a\ufffd31m\ufffdb" in shown
    assert not {"\u009b", "\u202e"} & set(shown)


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x.jsonl", [PROBLEMS[0]])
    (tmp_path / "folder.jsonl").mkdir()
    assert files_of(["x.jsonl", str(tmp_path / "x.jsonl"), "*.jsonl"], "k") == [Path("x.jsonl")]
    with pytest.raises(ValueError, match=r"k=folder\.jsonl: a folder; give JSONL files"):
        files_of("folder.jsonl", "k")


def test_files_of_one_name_are_told_apart() -> None:
    assert names_of(["a/x.jsonl", "b/x.jsonl", "b/y.jsonl"]) == {
        "a/x.jsonl": "a/x.jsonl",
        "b/x.jsonl": "b/x.jsonl",
        "b/y.jsonl": "y.jsonl",
    }


def test_rows_without_an_id_have_their_line(tmp_path: Path) -> None:
    rows = [{"id": None, "answer": "1"}, {"answer": "1"}, {"id": 0, "answer": "1"}]
    assert [row.id for row in read_rows(write(tmp_path / "a.jsonl", rows))] == ["1", "2", "0"]
