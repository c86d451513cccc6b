"""Streaming sets: local folders in a repository's layout stand for the hub, which is out of reach in tests."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import datasets
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from torch.utils.data import DataLoader, IterableDataset

from oar_lightning.data.files import FileProblems
from oar_lightning.data.hub import HubProblems, _digest
from oar_lightning.data.stream import ProblemSource, ProblemStream, is_endless


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library rests for seconds after a shuffled pass over parquet files, for threads of its own."""
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)


GSM8K: dict[str, Any] = {"question_column": "question", "answer_column": None, "solution_column": "answer"}


def folder(path: Path, rows: list[dict[str, Any]], files: int = 1, split: str = "train") -> str:
    path.mkdir(exist_ok=True)
    for i in range(files):
        table = pyarrow.Table.from_pylist(rows[i::files])
        pyarrow.parquet.write_table(table, path / f"{split}-{i:05}-of-{files:05}.parquet")
    return str(path)


def gsm8k(count: int) -> list[dict[str, Any]]:
    return [{"question": f"q{i}?", "answer": f"work\n#### {i}"} for i in range(count)]


def numbers(problems: Any) -> list[int]:
    return [int(p.answer) for p in problems]


def test_rows_in_their_stored_order(tmp_path: Path) -> None:
    source = HubProblems(folder(tmp_path / "set", gsm8k(150)), **GSM8K)
    assert isinstance(source, ProblemSource)
    assert not is_endless(source)
    assert numbers(source) == numbers(source) == list(range(150))
    first = next(iter(source))
    assert (first.question, first.solution, first.source) == ("q0?", "work\n#### 0", str(tmp_path / "set"))


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("buffer", [10, 1000])
def test_an_epochs_order_depends_on_seed_and_epoch_and_resumes_anywhere(tmp_path: Path, files: int, buffer: int) -> None:
    source = HubProblems(folder(tmp_path / "set", gsm8k(90), files), shuffle_buffer=buffer, **GSM8K)
    orders = {(s, e): numbers(source.shuffled(s, e)) for s, e in ((0, 0), (0, 1), (5, 0))}
    assert all(sorted(order) == list(range(90)) for order in orders.values())
    assert len(set(map(tuple, orders.values()))) == 3
    for start in (0, 1, 45, 89, 90):
        assert numbers(source.shuffled(0, 1, start)) == orders[0, 1][start:]
    assert numbers(source.shuffled(0, 0)) == orders[0, 0], "one pass leaves nothing behind for the next"


def test_a_problem_has_one_name_in_every_order(tmp_path: Path) -> None:
    source = HubProblems(folder(tmp_path / "set", gsm8k(40), 2), **GSM8K)
    stored = {p.question: p.id for p in source}
    assert len(set(stored.values())) == 40
    assert {p.question: p.id for p in source.shuffled(1, 2)} == stored


def test_a_stream_over_it_resumes_exactly(tmp_path: Path) -> None:
    path = folder(tmp_path / "set", gsm8k(20), 2)
    whole = ProblemStream(HubProblems(path, shuffle_buffer=5, **GSM8K), seed=1)
    whole.take(27)
    resumed = ProblemStream(HubProblems(path, shuffle_buffer=5, **GSM8K), seed=1)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert numbers(resumed.take(30)) == numbers(whole.take(30))


class Items(IterableDataset):
    def __init__(self, stream: ProblemStream, count: int) -> None:
        self.stream = stream
        self.count = count

    def __iter__(self) -> Any:
        return (int(self.stream.take(1)[0].answer) for _ in range(self.count))


@pytest.mark.parametrize("files", [1, 2])
def test_workers_of_a_loader_share_out_what_one_would_take(tmp_path: Path, files: int) -> None:
    """The library would give each worker some of the files only, and none to the second of one file."""
    path = folder(tmp_path / "set", gsm8k(20), files)
    stream = ProblemStream(HubProblems(path, **GSM8K), seed=0)
    alone = numbers(ProblemStream(HubProblems(path, **GSM8K), seed=0).take(20))
    assert list(DataLoader(Items(stream, 10), batch_size=None, num_workers=2)) == alone


def test_the_first_rows_only(tmp_path: Path) -> None:
    source = HubProblems(folder(tmp_path / "set", gsm8k(90)), limit=7, **GSM8K)
    assert numbers(source) == list(range(7))
    assert sorted(numbers(source.shuffled(0, 0))) == list(range(7))


def test_extra_columns(tmp_path: Path) -> None:
    rows = [row | {"steps": [i], "kind": "k"} for i, row in enumerate(gsm8k(3))]
    path = folder(tmp_path / "set", rows)
    assert [p.extra["steps"] for p in HubProblems(path, **GSM8K)] == [(0,), (1,), (2,)]
    assert [dict(p.extra) for p in HubProblems(path, extra_columns="kind", **GSM8K)] == [{"kind": "k"}] * 3


def test_splits_and_configurations_of_a_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = folder(tmp_path / "set", gsm8k(5))
    folder(tmp_path / "set", gsm8k(3), split="test")
    assert numbers(HubProblems(path, "main", "test", **GSM8K)) == [0, 1, 2]
    assert "bare files without configurations, so name=main chooses nothing" in caplog.text
    folder(tmp_path / "set" / "other", [{"question": "?", "answer": "#### 9"}])
    configs = "".join(
        f"- config_name: {name}\n  data_files: {files}\n" for name, files in (("main", "test*"), ("extra", "other/*"))
    )
    (tmp_path / "set" / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    assert numbers(HubProblems(path, "main", **GSM8K)) == [0, 1, 2]
    assert numbers(HubProblems(path, "extra", **GSM8K)) == [9]
    with pytest.raises(ValueError, match="'mian' not found"):
        next(iter(HubProblems(path, "mian", **GSM8K)))


def test_dropped_rows_are_counted_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [*gsm8k(5), {"question": "", "answer": "#### 1"}, {"question": "no marker", "answer": "?"}]
    source = HubProblems(folder(tmp_path / "set", rows), **GSM8K)
    for _ in range(2):
        assert len(list(source)) == 5
        assert len(list(source.shuffled(0, 1))) == 5
    assert source.dropped == {"rows without a question": 1, "rows without a gold answer": 1}
    assert caplog.text.count("rows without a question") == 1
    assert "kept 5 rows" in caplog.text


def test_a_pass_that_is_left_early_tells_what_it_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = HubProblems(folder(tmp_path / "set", [{"question": "", "answer": "#### 1"}, *gsm8k(5)]), **GSM8K)
    assert len(list(itertools.islice(source, 2))) == 2
    assert source.dropped == {"rows without a question": 1}
    assert "kept 2 rows" in caplog.text


def message(**arguments: Any) -> str:
    with pytest.raises(ValueError, match=r"^(path|split|limit|shuffle_buffer|\w+_column)\b") as caught:
        next(iter(HubProblems(**arguments)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach\nthe hub"),
        datasets.exceptions.DatasetNotFoundError("Dataset doesn't exist on the Hub"),
        FileNotFoundError("gone"),
        ValueError("Bad split: tarin. Available splits: ['train']"),
        TimeoutError("slow"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_hub_out_of_reach_names_the_way_out(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load)
    text = message(path="openai/gsm8k", name="main", **GSM8K)
    assert text.startswith("path=openai/gsm8k (name=main, split=train) cannot be read (")
    assert f"{type(error).__name__}: {' '.join(str(error).split())}" in text
    assert (
        "download it elsewhere and set path to its folder, or name its files: data=files data.train.paths=<files> "
        "data.train.question_column=question data.train.answer_column=null data.train.solution_column=answer"
    ) in text


def test_the_library_itself_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    text = message(path="openai/gsm8k", name="main", **GSM8K)
    assert "cannot be read (ConnectionError: " in text
    assert "download it elsewhere" in text


def test_a_connection_that_breaks_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    class Breaking:
        info, features = datasets.DatasetInfo(builder_name="parquet"), None

        def iter(self, batch_size: int) -> Any:
            yield {"question": ["q0?"], "answer": ["#### 0"]}
            raise ConnectionError("reset")

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: Breaking())
    problems = iter(HubProblems("openai/gsm8k", **GSM8K))
    assert next(problems).answer == "0"
    with pytest.raises(ValueError, match=r"openai/gsm8k .* cannot be read \(ConnectionError: reset\)"):
        next(problems)


def test_bad_folders_and_settings(tmp_path: Path) -> None:
    path = folder(tmp_path / "set", gsm8k(3))
    assert "has no such column; it has ['answer', 'question']: set it to one of them" in message(path=path)
    assert "Bad split: test. Available splits: ['train']" in message(path=path, split="test", **GSM8K)
    (tmp_path / "empty").mkdir()
    assert "is it a folder of parquet, JSONL or CSV files" in message(path=str(tmp_path / "empty"), **GSM8K)
    useless = folder(tmp_path / "useless", [{"question": "", "answer": "x"}])
    assert "has no usable row ({'rows without a question': 1})" in message(path=useless, **GSM8K)
    with pytest.raises(ValueError, match=r"revision=v2: path=.* is a folder, .*; leave revision out"):
        HubProblems(path, revision="v2", **GSM8K)
    for setting, value in (("shuffle_buffer", 0), ("limit", 0)):
        with pytest.raises(ValueError, match=rf"{setting} must be >= 1"):
            HubProblems(path, **GSM8K, **{setting: value})


def test_cells_of_csv_files_are_texts_as_in_files(tmp_path: Path) -> None:
    """Columns of numbers would lose leading zeros and, beside an empty cell, the last digits of large numbers."""
    (tmp_path / "train.csv").write_text(
        "problem,answer\na,007\nb,12345678901234567\nc,\nd,NA\ne,1.10\nf,3.14159265358979323846\n" + f"g,{10**29 + 1}\n"
    )
    expected = ["007", "12345678901234567", "NA", "1.10", "3.14159265358979323846", str(10**29 + 1)]
    assert [p.answer for p in HubProblems(str(tmp_path), solution_column=None)] == expected
    assert [p.answer for p in FileProblems(str(tmp_path / "train.csv"), solution_column=None)] == expected


def test_dates_that_are_read_from_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"problem": "when?", "answer": "2024-01-05"}\n')
    with pytest.raises(ValueError, match=r"answer_column=answer: .* holds a datetime there; it has to be a text or a number"):
        list(HubProblems(str(tmp_path), solution_column=None))


def test_answers_that_may_have_lost_digits_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "train.jsonl").write_text('{"problem": "a", "answer": 100000000000000001}\n{"problem": "b", "answer": 0.5}\n')
    assert [p.answer for p in HubProblems(str(tmp_path), solution_column=None)] == ["1e+17", "0.5"]
    assert "gold answers may be wrong; store them as texts" in caplog.text


def test_ids_do_not_hold_a_place_in_memory(tmp_path: Path) -> None:
    class Picture:
        """Its `repr` is another one each time."""

    assert _digest({"problem": "q", "picture": Picture()}) == _digest({"problem": "q", "picture": Picture()})
    assert _digest({"problem": "q", "n": [1]}) != _digest({"problem": "q", "n": [2]})


ROWS = [{"problem": "a", "answer": "007"}, {"problem": "b", "answer": "1.10"}]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("train.csv", {}),  # with an index, whose column has no name
        ("train.csv", {"index": False, "sep": ";"}),
        ("train.csv", {"index": False, "encoding": "latin-1"}),
        ("train.tsv", {"index": False, "sep": "\t"}),
    ],
)
def test_csv_files_of_any_form_that_the_library_reads(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    rows = [*ROWS, {"problem": "\xe9", "answer": "2"}]
    pandas.DataFrame(rows).to_csv(tmp_path / name, **options)
    said = {"sep": options.get("sep"), "encoding": options.get("encoding")}
    lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in said.items() if value is not None)
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n  - config_name: default\n    data_files: {name}\n{lines}---\n")
    found = HubProblems(str(tmp_path), solution_column=None, extra_columns=[])
    assert [(p.question, p.answer) for p in found] == [("a", "007"), ("b", "1.10"), ("\xe9", "2")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("problem,answer\nWhat is 2+3?,5,easy\n", "has more cells in its first row than its 2 columns"),
        ("problem,answer,answer\nWhat is 2+3?,5,6\n", "names a column twice"),
    ],
)
def test_a_csv_file_whose_cells_would_be_those_of_other_columns_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train-0.csv").write_text("problem,answer\nq,1\n")
    (tmp_path / "train-1.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"cannot be read .*train-1\.csv {message}"):
        list(HubProblems(str(tmp_path), solution_column=None))


def test_a_csv_file_without_a_header_has_the_names_that_the_set_gives(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("5,5\n6,7\n")
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n  - config_name: default\n    data_files: train.csv\n    names: [problem, answer]\n---\n"
    )
    assert [(p.question, p.answer) for p in HubProblems(str(tmp_path), solution_column=None)] == [("5", "5"), ("6", "7")]


def test_each_split_of_csv_files_has_its_own_columns(tmp_path: Path) -> None:
    pandas.DataFrame([{**row, "rationale": "r"} for row in ROWS]).to_csv(tmp_path / "train.csv", index=False)
    pandas.DataFrame([{**row, "level": "5"} for row in ROWS]).to_csv(tmp_path / "test.csv", index=False)
    found = HubProblems(str(tmp_path), split="test", solution_column=None, level_column="level")
    assert [(p.answer, p.level) for p in found] == [("007", "5"), ("1.10", "5")]
