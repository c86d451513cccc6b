"""What a lab has written into its folder, read again: all that its page needs, without a model."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS, TOKENS, PAGE = "results.json", "tokens.jsonl.gz", "lab.html"
"""The files of a lab's folder: a summary, every number of every token, the page made of both."""


@dataclass(frozen=True)
class LabRecord:
    """`results` is what `lab.record.to_json` makes, with the keys ``headlines`` (of measures), ``ranking`` (of estimators) and
    ``baseline``; `rows` are the completions of `lab.record.token_rows`, in the order of the results."""

    results: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> LabRecord:
        """What a lab has written.

        Raises:
            ValueError: where that is not all there, or not what a lab writes.
        """
        try:
            results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
            with gzip.open(folder / TOKENS, "rt", encoding="utf-8") as file:
                rows = [json.loads(line) for line in file]
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise ValueError(f"{folder} does not hold a lab's {RESULTS} and {TOKENS} ({error})") from error
        needed = ("completions", "truths", "estimators", "measures", "headlines", "ranking", "baseline")
        if not isinstance(results, dict) or (missing := [key for key in needed if key not in results]):
            what = "is not a lab's" if not isinstance(results, dict) else f"has no {', '.join(missing)}"
            raise ValueError(f"{folder / RESULTS} {what}; run the lab again")
        if len(rows) != len(results["completions"]):
            raise ValueError(
                f"{folder / TOKENS} has {len(rows)} completions, {RESULTS} {len(results['completions'])}; run the lab again"
            )
        return cls(results, rows)

    @property
    def missing(self) -> list[str]:
        """A sentence on each thing that was asked for and is not here."""
        stopped = [] if self.results.get("whole", True) else ["This lab was stopped before it had all numbers."]
        return stopped + [f"Not measured: {error}." for error in self.results.get("failed", ())]

    @property
    def headlines(self) -> list[str]:
        """Keys of the measures that the page shows first."""
        return [key for key in self.results["headlines"] if key in self.results["measures"]]

    @property
    def ranking(self) -> list[str]:
        """The estimators, the best first."""
        return list(self.results["ranking"])

    def is_control(self, estimator: str) -> bool:
        return bool(self.results["estimators"].get(estimator, {}).get("control"))

    @property
    def contenders(self) -> list[str]:
        """The estimators that are no controls, the best first; all where all are controls."""
        return [name for name in self.ranking if not self.is_control(name)] or self.ranking


def nan(value: float | None) -> float:
    """A number of a file, in which NaN is None."""
    return math.nan if value is None else value
