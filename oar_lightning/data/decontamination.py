"""Finds training problems that are also in an evaluation set: the same whole text, or a run of 13 words and most of the rest.

The 13-gram criterion is GPT-3's (arXiv 2005.14165, appendix C). By itself it finds what many problems say ("where m and n are
relatively prime positive integers, find m + n"), so that the longest common subsequence must hold 60 % of the shorter text's
words too, as for Qwen2.5-Math (arXiv 2409.12122). A text without spaces between its words, such as a Chinese one, is found by
the first criterion alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from oar_lightning.types import MathProblem

NGRAM = 13
COMMON = 0.6
"""The share of the shorter text's words that must be common to both."""

EXACT = "exact"
OVERLAP = f"{NGRAM}-gram"

_OPERATORS = str.maketrans(
    {"\u2212": "-", "\u2013": "-", "\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2264": "<=", "\u2265": ">=", "\u2260": "<>"}
)
"""Other signs of an operator -> how it is compared."""
# an operator tells 2+3 from 2-3 and belongs to the text; a hyphen between letters is punctuation, and so are brackets, colons
# and exclamation marks but at numbers and variables
_TOKEN = re.compile(
    r"\d+\.\d+|[^\W_]+|[+*/=<>^|%]|(?<![^\W\d_])-|-(?![^\W\d_])"
    r"|\((?=[\d(|+-]|[a-z](?![a-z]))|(?<=[\d)|!%])\)|(?<![a-z][a-z])(?<=[a-z])\)|(?<=[\d)])!|(?<=\d):(?=\d)"
)
_SPACED = re.compile(r"\s*([()|!:%])\s*")


class Match(NamedTuple):
    """The evaluation problem that matches a training problem, and by which criterion: `exact` or `13-gram`."""

    id: str
    kind: str


class Contamination:
    """The texts of evaluation problems, with which training problems are compared."""

    def __init__(self, problems: Iterable[MathProblem]) -> None:
        self._texts: dict[str, str] = {}
        for problem in problems:
            self._texts.setdefault(normalized(problem.question), problem.id)
        self._texts.pop("", None)  # a question of punctuation alone would match every other such question
        self._texts_with: dict[tuple[str, ...], list[str]] = {}
        for text in self._texts:
            for ngram in dict.fromkeys(_runs(_words(text), NGRAM)):
                self._texts_with.setdefault(ngram, []).append(text)

    def match(self, problem: MathProblem) -> Match | None:
        """The evaluation problem with the same normalised text, else the first that shares a 13-gram and most words."""
        text = normalized(problem.question)
        if text in self._texts:
            return Match(self._texts[text], EXACT)
        words = _words(text)
        held = dict.fromkeys(other for ngram in _runs(words, NGRAM) for other in self._texts_with.get(ngram, ()))
        found = next((other for other in held if _common_share(words, _words(other)) >= COMMON), None)
        return None if found is None else Match(self._texts[found], OVERLAP)

    def reason(self, problem: MathProblem) -> str | None:
        """`exact`, `13-gram`, or None for a problem that is in no evaluation set."""
        match = self.match(problem)
        return None if match is None else match.kind


def normalized(text: str) -> str:
    """Words, numbers and operators, without regard to case, white space and punctuation."""
    plain = unicodedata.normalize("NFKC", text.translate(_OPERATORS)).casefold()
    return " ".join(_TOKEN.findall(_SPACED.sub(r"\1", plain)))


def _runs(words: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    """Every run of `size` words; none of fewer."""
    return zip(*(words[i:] for i in range(size)), strict=False)


def _words(text: str) -> list[str]:
    """Words and numbers of a normalised text."""
    return [token for token in text.split() if token[0].isalnum()]


def _common_share(first: Sequence[str], second: Sequence[str]) -> float:
    """The length of the longest common subsequence over that of the shorter sequence.

    A bit-parallel form of the table of lengths (Hyyro 2004): a bit of `row` is 0 where the length grows with that word of
    `first`. It takes one addition of long integers for each word of `second`.
    """
    everywhere = (1 << len(first)) - 1
    places: dict[str, int] = {}
    for index, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << index
    row = everywhere
    for word in second:
        matches = row & places.get(word, 0)
        row = (row + matches | row - matches) & everywhere
    return (len(first) - row.bit_count()) / min(len(first), len(second))


class Finding(NamedTuple):
    """A training problem that is also in an evaluation set: their ids, the set's name, and the criterion."""

    train: str
    eval_set: str
    problem: str
    kind: str


@dataclass(frozen=True)
class ContaminationReport:
    """Contaminated training problems.

    ``train_problems``: how many training problems were read; ``contaminated``: how many of them are in any evaluation set;
    ``eval_sets``: how many problems each evaluation set has.
    """

    train_problems: int
    contaminated: int
    eval_sets: dict[str, int]
    findings: list[Finding] = field(default_factory=list)

    def count(self, eval_set: str, kind: str) -> int:
        """Training problems found in an evaluation set by one criterion; each counts once, as `exact` where it is both."""
        return Counter((finding.eval_set, finding.kind) for finding in self.findings)[eval_set, kind]


def find_contamination(train: Iterable[MathProblem], eval_sets: Mapping[str, Iterable[MathProblem]]) -> ContaminationReport:
    """Compare every training problem with every evaluation set."""
    problems_of = {name: list(problems) for name, problems in eval_sets.items()}
    contaminations = {name: Contamination(problems) for name, problems in problems_of.items()}
    findings: list[Finding] = []
    count = contaminated = 0
    for problem in train:
        count += 1
        matches = {name: contamination.match(problem) for name, contamination in contaminations.items()}
        new = [Finding(problem.id, name, match.id, match.kind) for name, match in matches.items() if match is not None]
        contaminated += bool(new)
        findings += new
    sizes = {name: len(problems) for name, problems in problems_of.items()}
    return ContaminationReport(count, contaminated, sizes, findings)
