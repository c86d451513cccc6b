"""Problems from local files: formats, what is dropped, and errors that name the remedy."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from oar_lightning.data.files import FileProblems, read_rows
from oar_lightning.data.stream import ProblemSource

ROWS = [
    {"problem": "1+1?", "answer": "2", "solution": "So \\boxed{2}.", "level": 3, "id": "a"},
    {"problem": "2+2?", "answer": 4, "solution": "#### 4", "source": "test"},
    {"problem": " 3+3? ", "answer": "6", "solution": None, "level": None},
]


def write(path: Path, rows: list[Any], raw: bool = False) -> str:
    text = "".join((row if raw else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return str(path)


def questions(source: FileProblems) -> list[str]:
    assert isinstance(source, ProblemSource)
    return [problem.question for problem in source]


def failure(*arguments: Any, **keywords: Any) -> str:
    with pytest.raises(ValueError, match=r"^(paths|limit|\w+_column)\b") as caught:
        FileProblems(*arguments, **keywords)
    return str(caught.value)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_rows(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, ROWS)
    source = FileProblems(path)
    assert questions(source) == ["1+1?", "2+2?", "3+3?"]
    assert [p.answer for p in source] == ["2", "4", "6"]
    assert [p.solution for p in source] == ["So \\boxed{2}.", "#### 4", ""]
    assert [p.source for p in source] == ["files", "test", "files"]
    assert [p.id for p in source] == ["a", f"{path}:2", f"{path}:3"]
    assert source.problems[0].level == ""
    assert not source.dropped


def test_extra_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(
        tmp_path / "rows.jsonl", [{"problem": f"{i}?", "answer": i, "steps": i, "texts": ["x" * 500]} for i in range(5)]
    )
    assert [p.extra["steps"] for p in FileProblems(path, solution_column=None)] == [0, 1, 2, 3, 4]
    monkeypatch.setattr("oar_lightning.data.files.MAX_EXTRA", 1200)
    told = failure(path, solution_column=None)
    assert "too large to be kept in memory (texts 0 MB" in told
    assert "set extra_columns to those that rewards read, e.g. [difficulty], or to [] for none" in told
    assert len(list(FileProblems(path, solution_column=None, extra_columns=["texts"]))) == 5, "who names them wants them"
    assert not next(iter(FileProblems(path, solution_column=None, extra_columns=[]))).extra


def test_several_files_and_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.jsonl", "a.jsonl", "c.jsonl.gz"):
        write(tmp_path / name, [{"problem": name, "answer": "1", "solution": ""}])
    assert questions(FileProblems(str(tmp_path / "*.jsonl"))) == ["a.jsonl", "b.jsonl"]
    paths = [str(tmp_path / "c.jsonl.gz"), str(tmp_path / "a*")]
    assert questions(FileProblems(paths)) == ["c.jsonl.gz", "a.jsonl"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert questions(FileProblems("~/b.jsonl")) == ["b.jsonl"]


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"problem": "q", "answer": "1", "solution": ""}])
    assert questions(FileProblems([str(path), str(tmp_path / "*")])) == ["q"]


def test_ids_that_stand_twice_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"id": i, "problem": f"q{n}", "answer": "1", "solution": ""} for n, i in enumerate("xyxx")]
    assert FileProblems(write(tmp_path / "a.jsonl", rows)).size == 4
    assert "data: 2 problems have the id of another one" in caplog.text


def test_a_name_with_brackets_is_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "train[v2].jsonl", [{"problem": "q", "answer": "1", "solution": ""}])
    assert questions(FileProblems(path)) == ["q"]


def test_halves_of_surrogate_pairs_become_question_marks(tmp_path: Path) -> None:
    """A text that was cut inside of an emoji is legal JSON, and no file or tokenizer takes it. A whole one stays."""
    (tmp_path / "x.jsonl").write_text(
        '{"problem": "a \\ud83d b \\ud83d\\ude00", "answer": "1", "solution": "", "note": ["\\udfff"]}\n'
    )
    (only,) = FileProblems(str(tmp_path / "x.jsonl"))
    assert (only.question, only.extra["note"]) == ("a ? b \U0001f600", ("?",))


def test_other_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [{"q": "1+1?", "gold": 2.5, "why": "w", "hard": 5}])
    (only,) = FileProblems(path, "q", "gold", "why", "hard")
    assert (only.answer, only.solution, only.level) == ("2.5", "w", "5")
    assert FileProblems(path, "q", "gold", None).problems[0].solution == ""


def test_the_answer_from_the_solution(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [*ROWS, {"problem": "4?", "solution": "no marker", "answer": "8"}])
    source = FileProblems(path, answer_column=None)
    assert [p.answer for p in source] == ["2", "4"]
    assert source.dropped == {"rows without a gold answer": 2}
    message = failure(path, answer_column=None, solution_column=None)
    assert "answer_column=null" in message
    assert "solution_column must be set" in message


def test_a_worked_solution_is_no_final_answer(tmp_path: Path) -> None:
    """GSM8K's own file has worked solutions in its column `answer`: every completion would be wrong."""
    path = write(tmp_path / "x.jsonl", [{"problem": "q", "answer": "He has 3 * 6 = 18 eggs.\n#### 18"}])
    message = failure(path, solution_column=None)
    assert message.startswith("answer_column=answer: ")
    assert "ends with '18'" in message
    assert "set answer_column=null and solution_column=answer" in message
    (read,) = FileProblems(path, answer_column=None, solution_column="answer")
    assert read.answer == "18"
    for stated in ("Ann has 9-6=3 left. The answer is 3.", "Thus it is $\\boxed{3}$.", "#### 3"):
        path = write(tmp_path / "x.jsonl", [{"problem": "q", "answer": stated}])
        assert "ends with '3'" in failure(path, solution_column=None)
    for stated in (
        "18",
        "\\boxed{18}",
        "1,\n2",
        "the answer is 18",
        "\\text{Answer: } 18",
        "Final Answer: $18$",
        "A: 3",
        "**\\boxed{18}**",
        "x = \\boxed{5}",
        "\\displaystyle\\boxed{18}",
        "\\boxed{3}, \\boxed{5}",
        "The answer is: \\(3\\)",
    ):
        (read,) = FileProblems(write(tmp_path / "y.jsonl", [{"problem": "q", "answer": stated}]), solution_column=None)
        assert read.answer == stated


def test_dropped_rows_are_counted_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        {"problem": q, "answer": a, "solution": ""}
        for q, a in (("", "1"), ("  ", "1"), (None, "1"), ("q", ""), ("q", None), ("q", 0))
    ]
    source = FileProblems(write(tmp_path / "x.jsonl", rows))
    assert source.dropped == {"rows without a question": 3, "rows without a gold answer": 2}
    assert [p.answer for p in source] == ["0"]
    assert "'rows without a question': 3" in caplog.text
    assert "kept 1 rows" in caplog.text


def test_limit(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, ROWS) for name in ("a.jsonl", "b.jsonl")]
    assert [FileProblems(paths, limit=n).size for n in (1, 3, 4, 6, 100)] == [1, 3, 4, 6, 6]
    rows = ["broken" if i == 2 else json.dumps(ROWS[0]) for i in range(4)]
    assert FileProblems(write(tmp_path / "c.jsonl", rows, raw=True), limit=2).size == 2


def test_odd_but_valid_files(tmp_path: Path) -> None:
    """U+2028, U+0085 and the like are line ends to Python but not to JSONL; blank lines and \\r\\n are harmless."""
    question = "a\u2028b\u2029c\x85d\x0be 日本 😀"
    lines = [json.dumps({"problem": question, "answer": "1", "solution": "x"}, ensure_ascii=False), "", "  "]
    path = tmp_path / "x.jsonl"
    path.write_bytes("\r\n".join(lines * 2).encode())
    assert questions(FileProblems(str(path))) == [question, question]


def test_no_file(tmp_path: Path) -> None:
    there = write(tmp_path / "x.jsonl", ROWS)
    for paths in ([str(tmp_path / "no*.jsonl")], [there, str(tmp_path / "no*.jsonl")]):  # none is passed over
        message = failure(paths)
        assert f"paths={tmp_path / 'no*.jsonl'}: no such file; give JSONL files (gzip too), parquet or CSV files," in message
    assert "no usable row (no file is named)" in failure([])


@pytest.mark.parametrize(
    ("column", "key", "tail"),
    [
        ("problem", "question_column", "to one of them"),
        ("answer", "answer_column", "or to null"),
        ("solution", "solution_column", "or to null"),
    ],
)
def test_a_missing_column_lists_those_there(tmp_path: Path, column: str, key: str, tail: str) -> None:
    path = write(tmp_path / "x.jsonl", [ROWS[0], {k: v for k, v in ROWS[0].items() if k != column}])
    message = failure(path)
    assert message.startswith(f"{key}={column}: {path}:2 has no such column; it has ['")
    assert message.endswith(tail)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{'problem': 1}", "is not JSON"),
        ('{"problem": "1+', "is not JSON"),
        ('["problem"]', "holds a list"),
        ('"text"', "holds a str"),
        ("3", "holds a int"),
        ("null", "holds a NoneType"),
    ],
)
def test_rows_that_are_no_objects(tmp_path: Path, line: str, reason: str) -> None:
    path = write(tmp_path / "x.jsonl", [json.dumps(ROWS[0]), line], raw=True)
    message = failure(path)
    assert message.startswith(f"paths: {path}:2 {reason}")
    assert "one JSON object a line" in message


@pytest.mark.parametrize("rows", [[], [{"problem": "", "answer": "1", "solution": ""}]])
def test_nothing_usable(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    message = failure(write(tmp_path / "x.jsonl", rows))
    assert "no usable row" in message
    assert ("rows without a question" if rows else "the files are empty") in message


def unreadable(kind: str, path: Path) -> None:
    packed = gzip.compress(json.dumps(ROWS[0]).encode() * 50)
    contents = {
        "not gzip": b"plain text",
        "cut off": packed[:-20],
        "damaged": packed[:20] + b"\xff\xff\xff" + packed[23:],
        "not utf-8": gzip.compress(b"\xff\xfe"),
    }
    if kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(contents[kind])


@pytest.mark.parametrize("kind", ["not gzip", "cut off", "damaged", "not utf-8", "folder"])
def test_unreadable_files_are_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.jsonl.gz"
    unreadable(kind, path)
    told = f"paths={path}: a folder; give JSONL files" if kind == "folder" else f"paths: {path} cannot be read ("
    assert failure(str(path)).startswith(told)


def test_a_line_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    """Constant memory: nothing beyond the rows asked for is looked at."""
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\nbroken\n")
    rows = read_rows(path)
    assert next(rows) == (f"{path}:1", ROWS[0])
    with pytest.raises(ValueError, match=r"x\.jsonl:2 is not JSON"):
        next(rows)


def test_epochs_are_permutations_by_seed_and_epoch(tmp_path: Path) -> None:
    source = FileProblems(write(tmp_path / "x.jsonl", [{"problem": str(i), "answer": "1", "solution": ""} for i in range(30)]))
    orders = {(s, e): [p.question for p in source.shuffled(s, e)] for s in range(2) for e in range(2)}
    assert all(sorted(map(int, order)) == list(range(30)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 4
    for start in (0, 1, 17, 29, 30):
        assert [p.question for p in source.shuffled(1, 1, start)] == orders[1, 1][start:]


def test_a_cell_may_hold_a_long_chain_of_thought(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f"problem,answer\n{'x' * 200_000},7\n")
    assert [len(p.question) for p in FileProblems(str(tmp_path / "rows.csv"), solution_column=None)] == [200_000]


def test_not_a_number_is_no_gold_answer(tmp_path: Path) -> None:
    """What pandas writes for a missing value."""
    path = write(tmp_path / "rows.jsonl", ['{"problem": "a", "answer": NaN}', '{"problem": "b", "answer": "1"}'], raw=True)
    source = FileProblems(path, solution_column=None)
    assert questions(source) == ["b"]
    assert source.dropped == {"rows without a gold answer": 1}


def test_a_line_nested_too_deeply_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ['{"problem": ' + "[" * 100_000 + "]" * 100_000 + "}"], raw=True)
    assert f"{path}:1 is not JSON" in failure(path)


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_csv_cells_are_texts(tmp_path: Path, name: str) -> None:
    """ "007" and "1.50" keep their form, "NA" is a text, commas and line ends may be quoted, and a BOM is no part of a name."""
    text = 'problem,answer,solution\n"a, ""b""\nc",007,\nq2,NA,x\nq3,,x\nq4,1.50,x\n'
    raw = b"\xef\xbb\xbf" + text.encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    source = FileProblems(str(path))
    assert [(p.question, p.answer) for p in source] == [('a, "b"\nc', "007"), ("q2", "NA"), ("q4", "1.50")]
    assert source.dropped == {"rows without a gold answer": 1}
    assert [p.id for p in source] == [f"{path}:row {n}" for n in (1, 2, 4)]


def test_parquet_with_nested_columns(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": f"{i}?"}], "reward_model": {"ground_truth": str(i)}, "id": i}
        for i in range(200)
    ]
    path = tmp_path / "odd[1].parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    source = FileProblems(str(tmp_path / "*.parquet"), "prompt.0.content", "reward_model.ground_truth", None)
    assert [(p.question, p.answer, p.id) for p in source] == [(f"{i}?", str(i), str(i)) for i in range(200)]


def test_tables_without_rows_and_blank_lines_before_a_header(tmp_path: Path) -> None:
    schema = pyarrow.schema([("problem", pyarrow.string()), ("answer", pyarrow.string())])
    empty = tmp_path / "empty.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([], schema), empty)
    assert "no usable row (the files are empty)" in failure(str(empty))
    table = tmp_path / "BLANK.CSV"
    table.write_text("\n\nproblem,answer\n\nq,1\n")
    assert questions(FileProblems(str(table), solution_column=None)) == ["q"]


def test_a_file_of_each_kind_at_once(tmp_path: Path) -> None:
    row = {"problem": "q", "answer": "1", "solution": "s"}
    write(tmp_path / "a.jsonl", [row])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "b.parquet")
    (tmp_path / "c.csv").write_text("problem,answer,solution\nq,1,s\n")
    assert [(p.question, p.answer, p.solution) for p in FileProblems(str(tmp_path / "*"))] == [("q", "1", "s")] * 3


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.parquet", b"PAR1 no table"),
        ("x.parquet", b""),
        ("x.csv", b'problem,answer,solution\na,1,s\n"open'),
        ("x.csv", b"problem,answer,solution\na,1,s,4,5\n"),
        ("x.csv", b"problem,answer,solution\na,1,s\nb,2,s\nc\rd,3,s\n"),
        ("x.csv", b"\xff\xfe,b\n1,2\n"),
        ("x.csv.gz", b"plain"),
    ],
)
def test_unreadable_tables_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert failure(str(path)).startswith(f"paths: {path} cannot be read (")


def test_a_column_named_twice(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("problem,answer,answer\na,1,2\n")
    assert (
        failure(str(path))
        == f"paths: {path} names a column twice in its first line ['problem', 'answer', 'answer']; rename one"
    )


def test_a_column_without_a_name(tmp_path: Path) -> None:
    """As spreadsheets write them where lines end with a comma."""
    path = tmp_path / "x.csv"
    path.write_text("problem,answer,\na,1,\n")
    said = f"paths: {path} has a column without a name in its first line ['problem', 'answer', '']; name it or remove it"
    assert failure(str(path)) == said


SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"
REAL = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared folder of real data beside the checkout")


@REAL
@pytest.mark.parametrize(
    ("name", "golds", "dropped"),
    [
        pytest.param("gsm8k_train.jsonl.gz", 7473, 0, marks=pytest.mark.slow),
        ("gsm8k_test.jsonl", 1319, 0),
        pytest.param("math_train.jsonl.gz", 7498, 2, marks=pytest.mark.slow),
        ("math500.jsonl", 500, 0),
    ],
)
def test_gold_answers_of_real_solutions(name: str, golds: int, dropped: int) -> None:
    """What the solution's last marker says is what the publisher states."""
    from_solution = FileProblems(str(SHARED / name), answer_column=None)
    stated = FileProblems(str(SHARED / name))
    assert from_solution.size == golds
    assert from_solution.dropped == ({"rows without a gold answer": dropped} if dropped else {})
    differing = [
        a.id for a, b in zip(from_solution, stated, strict=True) if "".join(a.answer.split()) != "".join(b.answer.split())
    ]
    assert differing == []


def test_numbers_of_half_the_precision_are_those_that_were_stored(tmp_path: Path) -> None:
    schema = pyarrow.schema([("problem", pyarrow.string()), ("answer", pyarrow.float32()), ("rate", pyarrow.float32())])
    rows = [{"problem": "a", "answer": 0.1, "rate": 0.3}, {"problem": "b", "answer": 3.3, "rate": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema), tmp_path / "x.parquet")
    found = list(FileProblems(str(tmp_path / "x.parquet"), solution_column=None))
    assert [(p.answer, p.extra["rate"]) for p in found] == [("0.1", 0.3), ("3.3", None)]
