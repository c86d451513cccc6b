"""A fingerprint changes with what is read of the problems, and with nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from support.numbered import Numbers

from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.data.files import FileProblems
from oar_lightning.data.fingerprint import SAMPLED, fingerprint
from oar_lightning.data.first import FirstProblems
from oar_lightning.data.listed import ListedProblems
from oar_lightning.data.mixture import Mixture
from oar_lightning.types import MathProblem


def written(path: Path, answers: list[int], **more: str) -> FileProblems:
    path.write_text("".join(json.dumps({"problem": f"{a}?", "answer": str(a), **more}) + "\n" for a in answers))
    return FileProblems(str(path), solution_column=None)


def test_of_files_it_is_of_every_row_that_is_read(tmp_path: Path) -> None:
    rows = list(range(SAMPLED + 2))
    known = fingerprint(written(tmp_path / "a.jsonl", rows))
    assert fingerprint(written(tmp_path / "moved.jsonl", rows)) == known
    assert fingerprint(written(tmp_path / "a.jsonl", rows, note="for rewards")) != known
    assert fingerprint(written(tmp_path / "a.jsonl", [*rows[:-1], 7])) != known, "the last row"
    assert fingerprint(written(tmp_path / "a.jsonl", rows[::-1])) != known


def test_of_the_first_problems_of_a_source_it_is_of_all(tmp_path: Path) -> None:
    rows = list(range(2 * SAMPLED))
    known = fingerprint(FirstProblems(written(tmp_path / "a.jsonl", rows), SAMPLED + 2))
    changed = [*rows[: SAMPLED + 1], 7, *rows[SAMPLED + 2 :]]
    assert fingerprint(FirstProblems(written(tmp_path / "a.jsonl", changed), SAMPLED + 2)) != known


def test_a_generator_ends_after_some_and_a_mixture_has_those_of_its_sources() -> None:
    assert fingerprint(ChainProblems(ChainTask())) == fingerprint(ChainProblems(ChainTask()))
    assert fingerprint(ChainProblems(ChainTask())) != fingerprint(ChainProblems(ChainTask(filler=1)))
    five, six = (Mixture({"a": Numbers(n)}, {"a": 1.0}) for n in (5, 6))
    assert fingerprint(five) != fingerprint(six)


def test_of_a_list_it_is_of_all() -> None:
    problems = [MathProblem(f"{n}?", str(n)) for n in range(2 * SAMPLED)]
    changed = [*problems[:-1], MathProblem("another?", "1")]
    assert fingerprint(ListedProblems(problems)) != fingerprint(ListedProblems(changed))
    assert fingerprint(ListedProblems(problems)) == fingerprint(problems)
