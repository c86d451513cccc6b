"""Fingerprints of problems, by which a resumed run notices that a file's content has changed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from itertools import islice

from oar_lightning.data.first import FirstProblems
from oar_lightning.data.listed import ListedProblems
from oar_lightning.data.mixture import Mixture
from oar_lightning.data.stream import ProblemSource
from oar_lightning.types import MathProblem

SAMPLED = 64
"""Problems of a source that is streamed or generated: to read all of them would take too long, or for ever."""

NAMES = ("id", "source")
"""Fields of a problem that say where it comes from, so that a file may move."""


def fingerprint(source: ProblemSource | Sequence[MathProblem]) -> str:
    """16 hexadecimal digits: of all problems of files, lists and the first ones of a source, of each source of a mixture, and
    of the first `SAMPLED` of others."""
    digest = hashlib.sha256()
    if isinstance(source, Mixture):
        for name, inner in source.sources.items():
            digest.update(f"{name}\0{fingerprint(inner)}\0".encode())
        return digest.hexdigest()[:16]
    for problem in islice(source, None if isinstance(source, ListedProblems | FirstProblems | Sequence) else SAMPLED):
        digest.update(f"{_content(problem)}\n".encode(errors="surrogatepass"))
    return digest.hexdigest()[:16]


def _content(problem: MathProblem) -> str:
    return repr([getattr(problem, field.name) for field in dataclasses.fields(problem) if field.name not in NAMES])
