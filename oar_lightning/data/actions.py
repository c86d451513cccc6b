"""The pieces of a text that a verifier of the task could judge."""

from __future__ import annotations

import re

from oar_lightning.types import CausalSpans, MathProblem

NUMBERS_AND_OPERATORS = r"\d+(?:[.,]\d+)*|[-+*/=<>^]"


class TextPattern:
    """Locates what a regular expression finds in a completion; for `scorer.actions` and `scorer.anchors`.

    Args:
        pattern: of Python's `re`. Keep it linear: completions are untrusted text.

    Raises:
        ValueError: for a pattern that cannot be read.
    """

    def __init__(self, pattern: str = NUMBERS_AND_OPERATORS) -> None:
        try:
            self.pattern = re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"pattern={pattern!r} (scorer.actions, scorer.anchors) is no regular expression: {error}"
            ) from error

    def __call__(self, problem: MathProblem, completion: str) -> CausalSpans:
        return CausalSpans(tuple(match.span() for match in self.pattern.finditer(completion)))
