"""Problems from JSONL files, gzip or plain, local or globbed."""

from __future__ import annotations

import glob
import gzip
import json
import logging
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from oar_lightning.answer_span import AnswerFormat, gold_answer
from oar_lightning.types import MathProblem

log = logging.getLogger(__name__)


class FileProblems:
    """All usable rows of the files, in order.

    Args:
        paths: files or glob patterns (``*.jsonl``, ``*.jsonl.gz``).
        question_column: the problem's text.
        answer_column: the gold answer; null takes it from the solution's last answer marker.
        solution_column: a worked solution, for `warm_start`; null for none.
        level_column: a difficulty, for reports; null for none.
        limit: keep the first so many rows; null for all.

    A row without a question or a gold answer is dropped, counted in ``dropped`` by reason, and reported.

    Raises:
        ValueError: where no file matches, a row is not JSON, a column is missing, or no row is usable.
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        question_column: str = "problem",
        answer_column: str | None = "answer",
        solution_column: str | None = "solution",
        level_column: str | None = None,
        limit: int | None = None,
    ) -> None:
        patterns = [paths] if isinstance(paths, str) else list(paths)
        files = [Path(f) for pattern in patterns for f in sorted(glob.glob(str(Path(pattern).expanduser())))]
        if not files:
            raise ValueError(
                f"data paths={patterns}: no such file; give JSONL files (gzip too) or a pattern, from {Path.cwd()}"
            )
        if answer_column is None and solution_column is None:
            raise ValueError("data answer_column=null takes the gold answer from the solution, so solution_column must be set")
        self.columns = {
            "question": question_column,
            "answer": answer_column,
            "solution": solution_column,
            "level": level_column,
        }
        self.dropped: Counter[str] = Counter()
        self.problems: list[MathProblem] = []
        for file in files:
            for number, line in enumerate(self._lines(file), 1):
                if limit is not None and len(self.problems) >= limit:
                    break
                if line.strip():
                    self._add(line, f"{file}:{number}")
        if self.dropped:
            log.warning("data: %s; kept %d rows of %s", dict(self.dropped), len(self.problems), ", ".join(map(str, files)))
        if not self.problems:
            raise ValueError(f"data paths={patterns}: no usable row ({dict(self.dropped) or 'the files are empty'})")

    @property
    def size(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> MathProblem:
        return self.problems[index]

    @staticmethod
    def _lines(file: Path) -> list[str]:
        try:
            raw = file.read_bytes()
            text = (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8")
            return text.split("\n")  # not splitlines: U+2028 may stand inside a JSON string
        except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
            raise ValueError(f"data paths: {file} cannot be read ({error})") from error

    def _add(self, line: str, where: str) -> None:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where} is not JSON ({error}); data=files reads one JSON object a line") from error
        if not isinstance(row, dict):
            raise ValueError(f"{where} holds a {type(row).__name__}; data=files reads one JSON object a line")
        values: dict[str, str] = {}
        for field, column in self.columns.items():
            if column is None:
                continue
            if column not in row:
                raise ValueError(
                    f"{where} has no column {column!r}; it has {sorted(row)}: set {field}_column to one of them"
                    + ("" if field == "question" else " or to null")
                )
            values[field] = "" if row[column] is None else str(row[column]).strip()
        answer = values.get("answer") if self.columns["answer"] else gold_answer(values.get("solution", ""), AnswerFormat())
        if not values["question"]:
            self.dropped["rows without a question"] += 1
        elif not answer:
            self.dropped["rows without a gold answer"] += 1
        else:
            self.problems.append(
                MathProblem(
                    question=values["question"],
                    answer=answer,
                    solution=values.get("solution", ""),
                    source=str(row.get("source", "files")),
                    level=values.get("level", ""),
                    id=str(row.get("id", where)),
                )
            )
