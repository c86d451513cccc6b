"""Which training problems also are problems of an evaluation set: by their whole text, or by a run of 13 words.

The 13-gram criterion is GPT-3's (arXiv 2005.14165, appendix C).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from oar_lightning.types import MathProblem

NGRAM = 13

EXACT = "exact"
OVERLAP = f"{NGRAM}-gram"

# an operator tells 2+3 from 2-3 and belongs to the text; a hyphen between letters is punctuation
_TOKEN = re.compile(r"[^\W_]+|[+*/=<>^]|(?<![^\W\d_])-|-(?![^\W\d_])")


class Match(NamedTuple):
    """The evaluation problem that a training problem contains, and how: `exact` or `13-gram`."""

    id: str
    kind: str


class Contamination:
    """The texts of evaluation problems, to hold training problems against."""

    def __init__(self, problems: Iterable[MathProblem]) -> None:
        self._texts: dict[str, str] = {}
        self._ngrams: dict[tuple[str, ...], str] = {}
        for problem in problems:
            self._texts.setdefault(normalized(problem.question), problem.id)
            for ngram in ngrams(problem.question):
                self._ngrams.setdefault(ngram, problem.id)
        self._texts.pop("", None)  # nothing but punctuation says nothing

    def match(self, problem: MathProblem) -> Match | None:
        """The first evaluation problem with the same normalised text, else the first that shares a 13-gram."""
        text = normalized(problem.question)
        if text in self._texts:
            return Match(self._texts[text], EXACT)
        shared = next((ngram for ngram in ngrams(problem.question) if ngram in self._ngrams), None)
        return None if shared is None else Match(self._ngrams[shared], OVERLAP)

    def reason(self, problem: MathProblem) -> str | None:
        """`exact`, `13-gram`, or None for a problem that is in no evaluation set."""
        match = self.match(problem)
        return None if match is None else match.kind


def normalized(text: str) -> str:
    """Words, numbers and operators, without regard to case, white space and punctuation."""
    return " ".join(_TOKEN.findall(unicodedata.normalize("NFKC", text).casefold()))


def ngrams(text: str, size: int = NGRAM) -> Iterator[tuple[str, ...]]:
    """Every run of `size` words and numbers of the normalised text; none for a shorter text."""
    words = [token for token in normalized(text).split() if token[0].isalnum()]
    return zip(*(words[i:] for i in range(size)), strict=False)


class Finding(NamedTuple):
    """One training problem that a benchmark also holds."""

    train: str
    benchmark: str
    problem: str
    kind: str


@dataclass(frozen=True)
class Report:
    """How many training problems were read, how many of them are in any benchmark, how many problems each benchmark has,
    and what was found."""

    train_problems: int
    contaminated: int
    benchmarks: dict[str, int]
    findings: list[Finding] = field(default_factory=list)

    def count(self, benchmark: str, kind: str) -> int:
        """Training problems found in a benchmark by one criterion; each counts once, as `exact` where it is both."""
        return Counter((f.benchmark, f.kind) for f in self.findings)[benchmark, kind]


def report(train: Iterable[MathProblem], benchmarks: Mapping[str, Iterable[MathProblem]]) -> Report:
    """Hold every training problem against every benchmark."""
    held = {name: list(problems) for name, problems in benchmarks.items()}
    known = {name: Contamination(problems) for name, problems in held.items()}
    findings: list[Finding] = []
    count = contaminated = 0
    for problem in train:
        count += 1
        matches = {name: contamination.match(problem) for name, contamination in known.items()}
        found = [Finding(problem.id, name, match.id, match.kind) for name, match in matches.items() if match is not None]
        contaminated += bool(found)
        findings += found
    return Report(count, contaminated, {name: len(problems) for name, problems in held.items()}, findings)
