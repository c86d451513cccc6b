"""task=audit: extraction and verification over files with known answers; a table, and JSON with one object a file."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console

from oar_lightning.answers.audit import AuditConfig, AuditReport, AuditRow, audit, read_rows
from oar_lightning.answers.span import AnswerFormat
from oar_lightning.answers.verifier import Verifier, VerifierConfig
from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.outputs import new_file, write_text
from oar_lightning.common.paths import files_of
from oar_lightning.common.progress import counted_progress
from oar_lightning.common.tables import ConsoleTable, printable

log = logging.getLogger(__name__)

SHOWN = 10
"""Misses and disagreements of a file that are printed; the JSON has all."""


def prepare(cfg: DictConfig) -> Callable[[], None]:
    config: AuditConfig = instantiate(cfg.audit, _convert_="all")
    if not config.files:
        raise ConfigError("audit.files is empty; name JSONL files, e.g. 'audit.files=[problems.jsonl,outputs.jsonl.gz]'")
    answer_format: AnswerFormat = instantiate(cfg.answer, _convert_="all")
    limits: VerifierConfig = instantiate(cfg.reward.terms.accuracy.verifier)
    output = new_file(config.output, "audit.output")
    files = {str(file): read_rows(file) for file in files_of(config.files, "audit.files")}
    return lambda: run(files, answer_format, limits, output)


def run(files: dict[str, list[AuditRow]], answer_format: AnswerFormat, limits: VerifierConfig, output: Path | None) -> None:
    verifier = Verifier(limits)
    reports = []
    try:
        for file, rows in files.items():
            with counted_progress(Path(file).name, "rows", len(rows)) as advance:
                reports.append(audit(file, rows, answer_format, verifier, advance))
    finally:
        verifier.close()
    console = Console(markup=False)
    summary(reports).print(console)
    shown = names_of(report.file for report in reports)
    for report in reports:
        _print_entries(console, shown[report.file], "misses", report.misses)
        _print_entries(console, shown[report.file], "disagreements with the labels", report.disagreements)
    if output is not None:
        write_text(output, json.dumps([r.to_json() for r in reports], ensure_ascii=False, indent=1) + "\n")
        console.print(f"written: {output}", soft_wrap=True)


def summary(reports: list[AuditReport]) -> ConsoleTable:
    names = ("rows", "with_gold", "extracted", "verified", "gold_only", "no_marker", "unparseable", "timeouts", "seconds")
    labels = ("tp", "fp", "fn", "tn", "agreement") if any(r.confusion for r in reports) else ()
    rows = []
    shown = names_of(report.file for report in reports)
    for report in reports:
        row = report.to_json()
        if report.confusion:
            row["agreement"] = f"{100 * row['agreement']:.2f} %"
        rows.append([shown[report.file], *(str(row.get(name, "")) for name in (*names, *labels))])
    return ConsoleTable("Answers: extraction and verification", ("file", *names, *labels), rows)


def names_of(files: Iterable[str]) -> dict[str, str]:
    """File -> its name, or the whole path where several have that name."""
    paths = [Path(file) for file in files]
    count = Counter(path.name for path in paths)
    return {str(path): path.name if count[path.name] == 1 else str(path) for path in paths}


def _print_entries(console: Console, file: str, title: str, entries: list[dict[str, object]]) -> None:
    if not entries:
        return
    console.print(f"{printable(file)}: {len(entries)} {title}", markup=False)
    for entry in entries[:SHOWN]:
        console.print(
            "  " + printable(json.dumps(entry, ensure_ascii=False))[:300], markup=False, highlight=False, soft_wrap=True
        )
    if len(entries) > SHOWN:
        console.print(f"  and {len(entries) - SHOWN} more (all are in audit.output)")
