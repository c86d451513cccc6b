"""Problems from local files: JSONL and CSV, gzip or plain, and parquet, by name or pattern."""

from __future__ import annotations

import csv
import glob
import logging
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from oar_lightning.common.jsonl import UNREADABLE, open_text, read_jsonl
from oar_lightning.common.paths import files_of
from oar_lightning.common.ranges import PositiveInt, checked
from oar_lightning.data.listed import ListedProblems
from oar_lightning.data.rows import Columns, as_texts, problems_of, table_rows
from oar_lightning.types import MathProblem

log = logging.getLogger(__name__)

KEY = "paths"
"""The setting that errors name; whoever knows where the source stands adds that."""

NO_ROWS = "BatchSize must be greater than 0"
"""What `datasets` says of a parquet file without rows."""

MAX_EXTRA = 2**30
"""Characters of all columns that are kept without being named; a number counts as eight."""


@checked("")
class FileProblems(ListedProblems):
    """All usable rows of the files, in order, read at once and kept as problems. A bad row is thus found before training
    starts, and an epoch's order is a full shuffle.

    Args:
        paths: files or glob patterns; ``*.parquet``, ``*.csv`` and ``*.csv.gz`` by extension; others are JSONL (``.gz``: gzip).
        question_column, answer_column, solution_column, level_column, id_column, extra_columns: see `Columns`.
        limit: keep the first so many problems; null for all.

    A row without a question or a gold answer is dropped, counted in ``dropped`` by reason, and reported.

    Raises:
        ValueError: where a name or pattern matches no file, a file cannot be read, a row is not JSON, a column is missing, no
            row is usable, or columns that nobody named (``extra_columns=null``) would take more than `MAX_EXTRA` characters of
            memory.
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        question_column: str = "problem",
        answer_column: str | None = "answer",
        solution_column: str | None = "solution",
        level_column: str | None = None,
        id_column: str | None = None,
        limit: PositiveInt | Annotated[None, "all"] = None,
        extra_columns: str | Sequence[str] | None = None,
    ) -> None:
        files = files_of(paths, KEY, "JSONL files (gzip too), parquet or CSV files,")
        columns = Columns(question_column, answer_column, solution_column, level_column, id_column, extra_columns)
        self.dropped: Counter[str] = Counter()
        rows = chain.from_iterable(read_rows(file) for file in files)
        found = problems_of(rows, columns, "files", self.dropped, limit)
        problems = list(found if extra_columns is not None else _within_memory(found))
        if self.dropped:
            log.warning("data: %s; kept %d rows of %s", dict(self.dropped), len(problems), ", ".join(map(str, files)))
        if not problems:
            reason = dict(self.dropped) or ("the files are empty" if files else "no file is named")
            raise ValueError(f"{KEY}={paths}: no usable row ({reason})")
        if repeated := len(problems) - len({problem.id for problem in problems}):
            log.warning("data: %d problems have the id of another one, as which curricula and tables take them", repeated)
        super().__init__(problems)


def _within_memory(problems: Iterator[MathProblem]) -> Iterator[MathProblem]:
    """The problems, until their extra columns are too large to be kept by default."""
    sizes: Counter[str] = Counter()
    for problem in problems:
        for name, value in problem.extra.items():
            sizes[name] += _characters(value)
        if sizes.total() > MAX_EXTRA:
            largest = ", ".join(f"{name} {size / 2**20:.0f} MB" for name, size in sizes.most_common(3))
            raise ValueError(
                f"{KEY}: the columns that rewards would find in problem.extra are too large to be kept in memory ({largest} so "
                "far); set extra_columns to those that rewards read, e.g. [difficulty], or to [] for none"
            )
        yield problem


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(name) + _characters(part) for name, part in value.items())
    return sum(map(_characters, value)) if isinstance(value, tuple) else 8


def read_rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place in the file, row) of each row of a file, in constant memory.

    Raises:
        ValueError: where the file cannot be read or a line is not a JSON object.
    """
    name = file.name.lower()
    if name.endswith(".parquet"):
        return _table(file, "parquet")
    if name.endswith((".csv", ".csv.gz")):
        return _csv(file)
    return _jsonl(file)


def _jsonl(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, row in read_jsonl(file, KEY, f"{KEY}: "):
        if not isinstance(row, dict):
            raise ValueError(f"{KEY}: {file}:{number} holds a {type(row).__name__}; {KEY} holds one JSON object a line")
        yield f"{file}:{number}", row


def _csv(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    csv.field_size_limit(sys.maxsize)  # a chain of thought can be longer than the default
    try:
        with open_text(file) as text:
            lines = filter(None, csv.reader(text))  # pandas leaves blank lines out, too
            header, first = next(lines, []), next(lines, [])
            deque(lines, maxlen=0)  # refuses a carriage return in a cell without quotes, at which pandas would end the row
    except (*UNREADABLE, csv.Error) as error:
        raise _unreadable(file, error) from error
    if not header:
        return
    if len(set(header)) < len(header):
        raise ValueError(f"{KEY}: {file} names a column twice in its first line {header}; rename one")
    if "" in header:
        raise ValueError(f"{KEY}: {file} has a column without a name in its first line {header}; name it or remove it")
    if len(first) > len(header):  # pandas would take the first cells for an index, and shift the others
        raise ValueError(f"{KEY}: {file} cannot be read ({len(first)} cells below the {len(header)} columns {header})")
    yield from _table(file, "csv", **as_texts(header))


def _table(file: Path, kind: str, **options: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        name = glob.escape(str(file.resolve()))
        rows = load_dataset(kind, data_files=name, split="train", streaming=True, **options)
        for number, row in enumerate(table_rows(rows), 1):
            yield f"{file}:row {number}", row
    except (OSError, ValueError, DatasetsError) as error:
        if NO_ROWS in str(error):
            return
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> ValueError:
    return ValueError(f"{KEY}: {file} cannot be read ({' '.join(str(error).split())})")
