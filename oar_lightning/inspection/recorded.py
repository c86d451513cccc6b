"""Reads completions recorded elsewhere into `Generation`s of a policy's tokens, to judge and score them like sampled ones."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oar_lightning.answers.reward import Completion, RewardTerm, numbers_of
from oar_lightning.answers.span import refuse_solution
from oar_lightning.common.jsonl import check_columns, gold_text, read_jsonl
from oar_lightning.common.paths import files_of
from oar_lightning.data.prompts import PromptTemplate
from oar_lightning.data.rows import plain_columns
from oar_lightning.rollout.sampling import Generation, encode_prompts, lay_out
from oar_lightning.types import MathProblem

STATED: set[str | None] = {
    *("problem", "question", "completion", "answer", "id", "problem_id"),
    *("is_correct", "truncated", "level", "source"),
}
"""The columns of a recorded completion that have a meaning here."""


@dataclass(frozen=True)
class RecordedCompletion:
    """A completion as its row in a file states it.

    ``problem.answer`` is empty without a gold answer. ``label`` is the publisher's verdict, or None. ``truncated``: the
    completion was cut off.
    """

    id: str
    problem: MathProblem
    text: str
    truncated: bool = False
    label: bool | None = None


def read_recorded(paths: str | Sequence[str], dropped: Counter[str], key: str = "score.files") -> Iterator[RecordedCompletion]:
    """The usable rows of JSONL files (``.gz`` too) or glob patterns, in order; other rows are counted in `dropped` by reason.

    A row has ``problem`` (or ``question``) and ``completion``; and where known ``answer`` (the gold answer), ``id``,
    ``problem_id``, ``is_correct``, ``truncated``, ``level``, ``source``; other columns are in ``problem.extra``. Without
    ``problem_id``, completions with the same question and gold answer are of one problem. A row may have the columns of
    MR-GSM8K instead (`from_steps`). `key`: the setting that names the files, for errors.

    Raises:
        ValueError: where a pattern matches no file, or a row is not a JSON object, lacks a column, or holds a wrong type in it.
    """
    for file in files_of(paths, key):
        for where, row in _rows(file, key):
            completion = _to_completion(row, where, key)
            if isinstance(completion, RecordedCompletion):
                yield completion
            else:
                dropped[completion] += 1


def _rows(file: Path, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, row in read_jsonl(file, key):
        if not isinstance(row, dict):
            raise ValueError(f"{file}:{number} holds a {type(row).__name__}; {key} holds one JSON object a line")
        yield f"{file}:{number}", row


def _to_completion(row: dict[str, Any], where: str, key: str) -> RecordedCompletion | str:
    """The row's completion, or the reason to drop the row."""
    row = from_steps(row)
    if "completion" not in row or not {"problem", "question"} & set(row):
        raise ValueError(f"{where} needs the columns problem (or question) and completion; it has {sorted(row)}: rename them")
    check_columns(row, where, ("is_correct", "truncated"), ("problem", "question", "completion"))
    question, text, gold = row.get("problem") or row.get("question"), row["completion"], row.get("answer")
    if not question or not question.strip():
        return "rows without a problem"
    if text is None:
        return "rows without a completion"
    gold = gold_text(gold, where)
    refuse_solution(gold, f"{where}: answer", "write its final answer there")
    problem = MathProblem(
        question=question,
        answer=gold,
        source=_optional(row, "source", ""),
        level=_optional(row, "level", ""),
        id=_optional(row, "problem_id", _digest(question, gold)),
        extra=plain_columns(row, STATED, key),
    )
    label = None if row.get("is_correct") is None else bool(row["is_correct"])
    return RecordedCompletion(_optional(row, "id", where), problem, text, bool(row.get("truncated")), label)


def from_steps(row: dict[str, Any]) -> dict[str, Any]:
    """A row in the form of MR-GSM8K (arXiv 2312.17080), whose completion is a list of steps, with the columns that are read
    here; any other row as it is."""
    steps = row.get("model_output_steps")
    if "completion" in row or not isinstance(steps, list):
        return row
    stated = {"model_output_answer_correctness": "is_correct", "ground_truth_answer": "answer", "uuid": "id"}
    named = {name: row[column] for column, name in stated.items() if column in row and name not in row}
    if "is_correct" in named:
        named["is_correct"] = {"correct": True, "wrong": False}.get(named["is_correct"])
    return row | named | {"completion": "\n".join(map(str, steps))}


def _optional(row: dict[str, Any], column: str, default: str) -> str:
    return default if row.get(column) is None else str(row[column])


def _digest(question: str, gold: str) -> str:
    return hashlib.sha256(f"{question}\x1f{gold}".encode()).hexdigest()[:12]


@dataclass(frozen=True)
class EncodedCompletion:
    """A recorded completion in a policy's tokens; the last token is EOS unless the completion was truncated."""

    recorded: RecordedCompletion
    prompt: list[int]
    completion: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)


def encode_recorded(recorded: Sequence[RecordedCompletion], tokenizer: Any, prompt: PromptTemplate) -> list[EncodedCompletion]:
    """Token ids of the prompts that the policy would get and of the completions' texts.

    Raises:
        ValueError: for a prompt without tokens.
    """
    prompts = encode_prompts(tokenizer, [prompt.render(r.problem) for r in recorded], [0] * len(recorded))
    completions: list[list[int]] = tokenizer([r.text for r in recorded], add_special_tokens=False).input_ids
    for r, ids in zip(recorded, completions, strict=True):
        # a recorded text may contain its EOS token already
        if not r.truncated and ids[-1:] != [tokenizer.eos_token_id]:
            ids.append(tokenizer.eos_token_id)
    return [EncodedCompletion(*parts) for parts in zip(recorded, prompts, completions, strict=True)]


def to_generation(encoded: Sequence[EncodedCompletion], pad: int, device: torch.device) -> Generation:
    """The completions as an engine returns sampled ones: prompts padded on the left, completions on the right."""
    truncated = [e.recorded.truncated for e in encoded]
    return lay_out([e.prompt for e in encoded], [e.completion for e in encoded], truncated, pad, device)


class GoldOnly:
    """A reward term that applies only to problems with a gold answer."""

    def __init__(self, term: RewardTerm, name: str = "reward") -> None:
        self.term = term
        self.name = name

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float | None]:
        with_gold = [i for i, problem in enumerate(problems) if problem.answer]
        rewards: list[float | None] = [None] * len(problems)
        if with_gold:
            values = self.term([problems[i] for i in with_gold], [completions[i] for i in with_gold])
            for i, value in zip(with_gold, numbers_of(values, len(with_gold), self.name), strict=True):
                rewards[i] = None if math.isnan(value) else value
        return rewards
