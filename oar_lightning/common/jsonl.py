"""JSON lines, gzip or plain, with errors that name the file and the line."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from oar_lightning.common.messages import one_line

_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
GZIP = b"\x1f\x8b"
"""The first bytes of a gzip file."""
UNREADABLE = (OSError, UnicodeDecodeError, EOFError, zlib.error)
"""What opening and reading a damaged or missing file raises."""


def open_text(file: Path) -> IO[str]:
    """A text file, plain or gzip, opened for reading. Lines end at a line feed only, not at a lone carriage return or at
    U+2028, which Python takes for a line's end."""
    zipped = file.suffix.lower() == ".gz"
    if not zipped and file.is_file():  # one may have another name, and a pipe cannot be looked into
        with open(file, "rb") as begun:
            zipped = begun.read(2) == GZIP
    opener = gzip.open if zipped else open
    return opener(file, "rt", encoding="utf-8-sig", newline="\n")


def read_jsonl(file: Path, key: str, where: str = "") -> Iterator[tuple[int, Any]]:
    """(line number, value) of each line that is not blank, in constant memory.

    `key`: the setting that names the file, for errors; `where`: a prefix of errors about a line, before the file's name.

    Raises:
        ValueError: where the file cannot be read or a line is not JSON.
    """
    try:
        with open_text(file) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _value(line, f"{where}{file}:{number}", key)
    except UNREADABLE as error:
        raise ValueError(f"{key}: {file} cannot be read ({one_line(error)})") from error


def check_columns(row: Mapping[str, Any], where: str, flags: Sequence[str], texts: Sequence[str]) -> None:
    """That the columns which a row has hold what they are for; a missing one and null are always good.

    Raises:
        ValueError: with the place `where`, the column, and its value.
    """
    for column in flags:
        if row.get(column) not in (None, True, False):
            raise ValueError(f"{where}: {column} must be true, false or null, got {row[column]!r}")
    for column in texts:
        if not isinstance(row.get(column), str | None):
            raise ValueError(f"{where}: {column} must be a text, got {row[column]!r}")


def gold_text(value: Any, where: str) -> str:
    """The gold answer that a column holds, without space around it; empty for null and NaN.

    Raises:
        ValueError: for another thing than a text or a number.
    """
    if value is None or value != value:  # NaN is what pandas writes where there is nothing
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{where}: answer must be a text or a number, got {value!r}")
    return str(value).strip()


def without_nan(value: Any) -> Any:
    """A value as JSON has it: numbers that are not finite, which JSON cannot say, are null."""
    if isinstance(value, dict):
        return {key: without_nan(part) for key, part in value.items()}
    if isinstance(value, list):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table_json(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The JSON that the MLflow UI shows as a table; what is not finite is null."""
    table = {"columns": list(columns), "data": [list(row) for row in rows]}
    return json.dumps(without_nan(table), ensure_ascii=False, allow_nan=False)


def _value(line: str, where: str, key: str) -> Any:
    """JSON can name halves of surrogate pairs (a text that was cut inside of an emoji), which no file or tokenizer takes: each
    becomes a question mark."""
    try:
        value = json.loads(line)
        if _SURROGATE.search(line):
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
        return value
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON ({error}); {key} holds one JSON object a line") from error
