"""Tests answer extraction and verification on files with known answers or labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oar_lightning.answers.span import AnswerFormat, find_answer, refuse_solution
from oar_lightning.answers.verifier import Verdict, Verifier
from oar_lightning.common.jsonl import check_columns, gold_text, read_jsonl

BATCH = 512
"""Rows judged at once, after which the progress bar advances."""


@dataclass(frozen=True)
class AuditConfig:
    """The files of an audit.

    Args:
        files: JSONL files (gzip too). A row is a model's output (`completion` and `answer`, with the publisher's label in
            `is_correct` where there is one) or a problem (`answer` and, where known, `solution`).
        output: JSON file for the results; None prints the table only.
    """

    files: Sequence[str] = ()
    output: str | None = None


@dataclass(frozen=True)
class AuditRow:
    """One row: a completion or a worked solution ("" where a problem has none), the gold answer, the label."""

    id: str
    completion: bool
    text: str
    gold: str
    label: bool | None
    complete: bool


@dataclass
class AuditReport:
    """Counts of one file. `verified`: rows whose text states an answer that is judged equal to the gold answer.

    `gold_only`: problems without a solution, or whose solution has no answer marker. Nothing can be verified there; the gold
    answer was judged against itself, and could be read.
    """

    file: str
    rows: int = 0
    with_gold: int = 0
    extracted: int = 0
    verified: int = 0
    gold_only: int = 0
    no_marker: int = 0
    unparseable: int = 0
    timeouts: int = 0
    seconds: float = 0.0
    confusion: dict[str, int] = field(default_factory=dict)
    misses: list[dict[str, Any]] = field(default_factory=list)
    disagreements: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """One flat object; `tp`, `fp`, `fn`, `tn`, `agreement` and `disagreements` for labelled files only."""
        plain = {k: v for k, v in vars(self).items() if k not in ("confusion", "misses", "disagreements")}
        plain["misses"] = self.misses
        if self.confusion:
            labelled = sum(self.confusion.values())
            agreement = (self.confusion["tp"] + self.confusion["tn"]) / labelled
            plain |= {**self.confusion, "agreement": agreement, "disagreements": self.disagreements}
        return plain


def read_rows(path: Path) -> list[AuditRow]:
    """All rows of a file.

    Raises:
        ValueError: names the file, and the line of a row that is neither a completion nor a problem, or where a value is none
            that its column holds; for a file without rows.
    """
    where = "audit.files: "
    rows = [_row(f"{where}{path}:{number}", number, row) for number, row in read_jsonl(path, "audit.files", where)]
    if not rows:
        raise ValueError(f"{where}{path} has no row; give files with completions or problems")
    return rows


def _row(where: str, number: int, row: Any) -> AuditRow:
    if not isinstance(row, dict) or not ({"completion", "solution", "answer"} & set(row)):
        raise ValueError(f"{where} has neither completion, solution nor answer; it needs completion and answer, or answer")
    if "completion" in row and "answer" not in row:
        raise ValueError(f"{where} has a completion but no answer to compare it with")
    check_columns(row, where, ("is_correct", "truncated"), ("completion", "solution"))
    gold = gold_text(row.get("answer"), where)
    refuse_solution(gold, f"{where}: answer", "call that column solution, or write its final answer there")
    label = row.get("is_correct")
    completion = "completion" in row
    if label is not None and not completion:
        raise ValueError(
            f"{where} has a label of a model's output (is_correct={label!r}) but no completion; "
            "name the output's column completion"
        )
    return AuditRow(
        id=str(number if row.get("id") is None else row["id"]),
        completion=completion,
        text=_text(row["completion"] if completion else row.get("solution")),
        gold=gold,
        label=None if label is None else bool(label),
        complete=not row.get("truncated", False),
    )


def audit(
    file: str,
    rows: Sequence[AuditRow],
    answer_format: AnswerFormat,
    verifier: Verifier,
    advance: Callable[[int], None] = lambda count: None,
) -> AuditReport:
    """Extract and verify every row; `advance` gets the number of rows of each finished batch."""
    report = AuditReport(file, rows=len(rows))
    started = time.perf_counter()
    if any(row.label is not None and row.gold for row in rows):
        report.confusion = dict.fromkeys(("tp", "fp", "fn", "tn"), 0)
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        stated = [_stated(row, answer_format) for row in batch]
        judged = [_judged(row, answer) for row, answer in zip(batch, stated, strict=True)]
        verdicts = verifier([row.gold for row in batch], judged)
        for row, answer, verdict in zip(batch, stated, verdicts, strict=True):
            _count(report, row, answer, verdict)
        advance(len(batch))
    report.seconds = round(time.perf_counter() - started, 3)
    return report


def _stated(row: AuditRow, answer_format: AnswerFormat) -> str | None:
    """The answer that the row's text states."""
    span = find_answer(row.text, answer_format, row.complete)
    return None if span is None else row.text[span.start : span.end]


def _judged(row: AuditRow, stated: str | None) -> str | None:
    """The answer to compare with the gold answer; where a problem's solution states none, the gold answer itself."""
    if not row.gold:
        return None
    return row.gold if stated is None and not row.completion else stated


def _count(report: AuditReport, row: AuditRow, stated: str | None, verdict: Verdict) -> None:
    correct = verdict is Verdict.CORRECT
    report.with_gold += bool(row.gold)
    report.extracted += stated is not None
    without_marker = stated is None and (row.completion or bool(row.text))
    report.no_marker += without_marker
    if stated is None and not row.completion:
        report.gold_only += correct
    else:
        report.verified += correct
    report.unparseable += verdict is Verdict.UNPARSEABLE
    report.timeouts += verdict is Verdict.TIMEOUT
    entry = {"id": row.id, "gold": row.gold, "stated": stated, "verdict": verdict.value}
    if row.label is not None and row.gold:  # without a gold answer nothing was judged
        report.confusion[("tp" if row.label else "fp") if correct else ("fn" if row.label else "tn")] += 1
        if correct != row.label:
            report.disagreements.append({**entry, "label": row.label})
    reasons = {"no gold answer": not row.gold, "no answer marker": without_marker, "not judged equal": not correct}
    reason = next((name for name, applies in reasons.items() if applies), None)
    if reason is not None and (not row.completion or stated is None or not row.gold):
        report.misses.append({**entry, "reason": reason})


def _text(value: Any) -> str:
    return "" if value is None else str(value)
