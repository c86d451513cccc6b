"""Records of a lab with made-up numbers, as its page reads them."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.lab_findings import findings

from oar_lightning.lab.page import RESULTS, TOKENS, LabRecord
from oar_lightning.lab.record import to_json, token_rows
from oar_lightning.lab.reliability import reliability
from oar_lightning.lab.table import compared, headlines, ranking
from oar_lightning.lab.types import Findings

NAMES = ("weak", "middle", "strong")


def record(names: Sequence[str] = NAMES) -> LabRecord:
    """Eight completions of 20 reasoning tokens; `weak` is a control and the baseline."""
    found = with_texts(findings(names))
    reliabilities = {truth.name: reliability(truth, found.studied, 0.8) for truth in found.truths}
    results = {
        "headlines": [measure.key for measure in headlines(found)],
        "ranking": ranking(found),
        "baseline": names[0],
        **to_json(found, reliabilities, compared(found, names[0])),
    }
    results["estimators"][names[0]]["control"] = True
    return LabRecord(results, list(token_rows(found)))


def with_texts(found: Findings) -> Findings:
    """Each token is a word of its own."""
    rollouts = found.studied.rollouts
    words = [f"w{i} " for i in range(int(rollouts.response_mask[0].sum()))]
    ends = list(itertools.accumulate(map(len, words)))
    spans = tuple(zip([0, *ends], ends, strict=False))
    count = len(found.studied.ids)
    rollouts = dataclasses.replace(rollouts, completions=("".join(words),) * count, token_spans=(spans,) * count)
    return dataclasses.replace(found, studied=dataclasses.replace(found.studied, rollouts=rollouts))


def write(record: LabRecord, folder: Path) -> Path:
    """The files of the record, in the folder."""
    (folder / RESULTS).write_text(json.dumps(record.results))
    with gzip.open(folder / TOKENS, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in record.rows)
    return folder


def curve(names: Sequence[str], title: str = "reward after removal") -> dict[str, Any]:
    return {
        "title": title,
        "fraction": [0.0, 0.5, 1.0],
        "outcome": {name: [1.0, 0.5 / (i + 1), None if i == 1 else 0.0] for i, name in enumerate(names)},
    }


def attacked(record: LabRecord, attacks: Sequence[str]) -> LabRecord:
    """The first completion's tokens are the attacks, as are all other texts and names there are."""
    row, count = dict(record.rows[0]), len(attacks)

    def resized(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: resized(part) for key, part in value.items()}
        if isinstance(value, list):
            return (value * count)[:count] if not value or not isinstance(value[0], list) else [resized(v) for v in value]
        return value

    row = resized(row)
    text = "".join(attacks)
    row |= {"tokens": list(attacks), "question": text, "answer": text, "gold": text, "id": text}
    return LabRecord(record.results, [row, *record.rows[1:]])


def renamed(record: LabRecord, old: str, new: str) -> LabRecord:
    """An estimator with another name."""

    def rename(value: Any) -> Any:
        if isinstance(value, dict):
            return {new if key == old else key: rename(part) for key, part in value.items()}
        if isinstance(value, list):
            return [rename(part) for part in value]
        return new if value == old else value

    return LabRecord(rename(record.results), rename(list(record.rows)))
