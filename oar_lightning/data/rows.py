"""Rows of a table -> problems: the meaning of columns, dotted paths into nested rows, and the reasons to drop a row."""

from __future__ import annotations

import functools
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any

import numpy as np

from oar_lightning.answers.span import gold_answer, refuse_solution
from oar_lightning.types import MathProblem

log = logging.getLogger(__name__)

Row = Mapping[str, Any]

DEEPEST = 50
"""Lists and mappings within each other of a value in ``problem.extra``."""

EXACT = 2.0**53
"""Whole numbers beyond it are not all floating-point numbers."""

TEXTS = ("question", "solution", "answer")
"""What a problem consists of; its other columns are names."""

NUMBERS_TEXTS = (str, int, float, Decimal)
NAMES = (*NUMBERS_TEXTS, date, time, timedelta)
"""Types of those, and of an id or a level."""

NO_QUESTION = "rows without a question"
NO_ANSWER = "rows without a gold answer"


@dataclass(frozen=True)
class Columns:
    """The columns of a set of problems; a dotted name is a path into a nested row (``prompt.0.content``).

    Args:
        question: the problem's text.
        answer: the gold answer; None takes it from the solution's last answer marker (``#### x``, a box, ...).
        solution: a worked solution; None for none.
        level: a difficulty; None for none.
        id: the problem's name; None takes the column ``id`` where there is one, else the row's place in its file.
        extra: columns that rewards, scorers and evaluation find in ``problem.extra``, each by its name or dotted path as it is
            given here; None takes all columns but those that the other arguments name. Values are what JSON holds, dates and
            decimals texts; None leaves out a column that holds something else, and says so once.

    Raises:
        ValueError: where neither a column nor a solution gives the gold answer, or where the question would hold it.
    """

    question: str = "problem"
    answer: str | None = "answer"
    solution: str | None = "solution"
    level: str | None = None
    id: str | None = None
    extra: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.extra, str):
            object.__setattr__(self, "extra", (self.extra,))
        if self.question in (self.answer, self.solution):
            raise ValueError(
                f"question_column={self.question} is the column of the answer or the solution, too, so that prompts would tell "
                "it; name the column of the question"
            )
        if self.answer is None and self.solution is None:
            raise ValueError("answer_column=null takes the gold answer from the solution, so solution_column must be set")


def problems_of(
    rows: Iterable[tuple[str, Row]], columns: Columns, source: str, dropped: Counter[str], limit: int | None = None
) -> Iterator[MathProblem]:
    """The problems of the usable rows in order, up to `limit`; other rows are counted in `dropped` by reason.

    `rows` holds (place in its file, row).

    Raises:
        ValueError: for a row that lacks a column, holds something else than a text or a number in it, or a worked solution as
            its answer.
    """

    def usable() -> Iterator[MathProblem]:
        for where, row in rows:
            problem = to_problem(row, columns, source, where)
            if isinstance(problem, MathProblem):
                yield problem
            else:
                dropped[problem] += 1

    return islice(usable(), limit)


def table_rows(dataset: Any) -> Iterator[dict[str, Any]]:
    """The rows of a dataset that is streamed, in constant memory."""
    # iter, not __iter__: inside a DataLoader's worker the latter would yield that worker's share only
    for batch in dataset.iter(batch_size=64):
        columns = [_shortest(values, _dtype(dataset, name)) for name, values in batch.items()]
        for values in zip(*columns, strict=True):
            yield dict(zip(batch, values, strict=True))


def _dtype(dataset: Any, column: str) -> str:
    return str(getattr((dataset.features or {}).get(column), "dtype", ""))


def _shortest(values: Sequence[Any], dtype: str) -> Sequence[Any]:
    """Numbers of less than double precision by their shortest form: 0.1, not 0.10000000149011612."""
    if dtype not in ("float16", "float32"):
        return values
    return [None if value is None else float(str(np.dtype(dtype).type(value))) for value in values]


def to_problem(row: Row, columns: Columns, source: str, where: str) -> MathProblem | str:
    """The row's problem, or the reason to drop the row. The row's own column ``source`` comes before `source`."""
    question = _text(row, "question", columns.question, where)
    solution = _text(row, "solution", columns.solution, where)
    stated = _text(row, "answer", columns.answer, where)
    level = _text(row, "level", columns.level, where)
    name = _text(row, "id", columns.id or ("id" if isinstance(row.get("id"), NAMES) else None), where)
    answer = gold_answer(solution) if columns.answer is None else stated
    if columns.answer is not None:
        remedy = f"set answer_column=null and solution_column={columns.answer} to read final answers from it"
        refuse_solution(stated, f"answer_column={columns.answer}: {where}", remedy)
    if not question:
        return NO_QUESTION
    if not answer:
        return NO_ANSWER
    extra = extra_of(row, columns, source, where)
    return MathProblem(question, answer, solution, str(row.get("source") or source), level, name or where, extra)


def extra_of(row: Row, columns: Columns, source: str, where: str) -> dict[str, Any]:
    """The row's values for ``problem.extra``.

    Raises:
        ValueError: for a named column that the row lacks, or whose value is none that JSON holds.
    """
    if columns.extra is None:
        read = {columns.question, columns.answer, columns.solution, columns.level, columns.id}
        return plain_columns(row, read, source)
    found = {}
    for path in columns.extra:
        try:
            found[path] = plain_value(lookup(row, path))
        except KeyError:
            raise ValueError(f"{where} has no column {path!r}; it has {paths(row)}: name others in extra_columns") from None
        except TypeError as error:
            raise ValueError(
                f"{where} holds a {error} in column {path!r}, which problem.extra cannot; leave it out of extra_columns"
            ) from None
    return found


def plain_columns(row: Row, without: set[str | None], source: str) -> dict[str, Any]:
    """All columns of a row but those named in `without`, and those whose values are none that JSON holds."""
    found = {}
    for name in row.keys() - without:
        try:
            found[name] = plain_value(row[name])
        except TypeError as error:
            _tell_left_out(source, name, str(error))
    return {name: found[name] for name in row if name in found}


@functools.cache
def _tell_left_out(source: str, column: str, kind: str) -> None:
    log.warning("data: column %r of %s holds a %s; problem.extra is without it", column, source, kind)


def plain_value(value: Any, depth: int = 0) -> Any:
    """The value as JSON holds it: dates, times and decimals as texts, arrays as lists.

    Raises:
        TypeError: with the name of a type that has no such form, or of what is wrong with a value.
    """
    if depth > DEEPEST:
        raise TypeError(f"value within {DEEPEST} others")
    if hasattr(value, "tolist"):  # of numpy, whose numbers and texts are Python's, too
        value = value.tolist()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_value(part, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(part, depth + 1) for part in value]
    if isinstance(value, date | time | timedelta | Decimal):
        return str(value)
    raise TypeError(type(value).__name__)


def is_plain(value: Any) -> bool:
    """Whether JSON holds it."""
    try:
        plain_value(value)
    except TypeError:
        return False
    return True


def as_texts(columns: Sequence[str]) -> dict[str, Any]:
    """Options that have `datasets` read the cells of a CSV file as they are: numbers would lose their form ("007", "1.50") or
    their last digits, and "NA" or "None" are texts like any other."""
    from datasets import Features, Value

    features = Features({column: Value("string") for column in columns})
    return {"features": features, "keep_default_na": False, "na_filter": False}


def lookup(row: Row, path: str) -> Any:
    """The value at a column's name or dotted path; None where a list on the path is too short or a value is null.

    Raises:
        KeyError: where the row has no such column.
    """
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value[part]
        elif isinstance(value, list | tuple) and part.removeprefix("-").isdigit():
            value = value[int(part)] if -len(value) <= int(part) < len(value) else None
        elif value is not None:
            raise KeyError(path)
    return value


def paths(row: Row) -> list[str]:
    """The dotted paths of all columns of a row; a list's paths are those of its first entry."""
    leaves: list[str] = []

    def visit(value: Any, path: str) -> None:
        children: dict[Any, Any] = {}
        if isinstance(value, Mapping):
            children = dict(value)
        elif isinstance(value, list | tuple):
            children = dict(enumerate(value[:1]))
        for key, child in children.items():
            visit(child, f"{path}.{key}")
        if not children:
            leaves.append(path)

    for key, value in row.items():
        visit(value, str(key))
    return sorted(leaves)


def _text(row: Row, field: str, path: str | None, where: str) -> str:
    if path is None:
        return ""
    try:
        value = lookup(row, path)
    except KeyError:
        remedy = "" if field == "question" else " or to null"
        raise ValueError(
            f"{field}_column={path}: {where} has no such column; it has {paths(row)}: set it to one of them{remedy}"
        ) from None
    if isinstance(value, Mapping | list | tuple):
        raise ValueError(
            f"{field}_column={path}: {where} holds a {type(value).__name__} there; set it to a path into it, "
            f"one of {[p for p in paths(row) if p.startswith(f'{path}.')]}"
        )
    if value is None or value != value:  # NaN: what pandas writes where there is nothing
        return ""
    if not isinstance(value, NUMBERS_TEXTS if field in TEXTS else NAMES) or (isinstance(value, bool) and field in TEXTS):
        kind = f"{value!r}" if isinstance(value, bool) else f"a {type(value).__name__}"
        raise ValueError(f"{field}_column={path}: {where} holds {kind} there; it has to be a text or a number")
    if isinstance(value, float) and field == "answer":
        return _number(value, path, where)
    return str(value).strip()


def _number(value: float, column: str | None, where: str) -> str:
    if math.isinf(value):
        return r"\infty" if value > 0 else r"-\infty"
    if abs(value) >= EXACT and value.is_integer():
        _tell_inexact(column, where.rpartition(":")[0])
    return str(value)


@functools.cache
def _tell_inexact(column: str | None, source: str) -> None:
    log.warning(
        "data: answer_column=%s of %s holds floating-point numbers of more digits than these keep, so that gold answers may be "
        "wrong; store them as texts",
        column,
        source,
    )
