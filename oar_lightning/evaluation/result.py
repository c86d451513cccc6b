"""The result of an evaluation on one problem, and the file that stores results while an evaluation runs."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oar_lightning.types import MathProblem

log = logging.getLogger(__name__)

NO_SIGNAL = "all rewards of the group are equal: advantage 0"
NO_GROUP = "decoded greedily, in no group: no advantage"


@dataclass(frozen=True)
class ProblemResult:
    """One problem with its sampled completions, one entry a sample, and its greedy completion.

    ``correct`` holds 0 or 1, ``rewards`` the weighted sum of all reward terms (None: none applied). ``classes`` holds the
    equivalence class of each answer: 0 is that of the gold answer, None a completion without an answer. The greedy fields are
    None where nothing was decoded greedily.
    """

    id: str
    question: str
    gold: str
    level: str
    source: str
    completions: tuple[str, ...]
    answers: tuple[str | None, ...]
    correct: tuple[int, ...]
    rewards: tuple[float | None, ...]
    truncated: tuple[bool, ...]
    classes: tuple[int | None, ...]
    greedy_completion: str | None = None
    greedy_answer: str | None = None
    greedy_correct: int | None = None
    greedy_reward: float | None = None

    def to_json(self) -> str:
        """The result as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> ProblemResult:
        """The result that `to_json` wrote; raises ValueError, KeyError or TypeError for any other line."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(line).items()}
        return cls(**values)

    def is_about(self, problem: MathProblem) -> bool:
        return (self.id, self.question, self.gold) == (problem.id, problem.question, problem.answer)


def completions_table(
    results: Sequence[ProblemResult], advantages: Sequence[Sequence[float]] | None = None
) -> dict[str, list[Any]]:
    """A table with one row a completion: each problem's samples, then its greedy completion.

    `advantages`: those of each problem's samples. With them the table has the columns `advantage` and `note`, which says why
    an advantage is 0 or missing.
    """
    rows = []
    for place, r in enumerate(results):
        rounded = [None] * len(r.correct) if advantages is None else [round(a, 6) for a in advantages[place]]
        note = "" if any(rounded) else NO_SIGNAL
        samples = zip(r.completions, r.answers, r.rewards, rounded, range(len(rounded)), r.correct, strict=True)
        columns: list[tuple[Any, ...]] = [(*sample, note) for sample in samples]
        if r.greedy_completion is not None:
            greedy = (r.greedy_completion, r.greedy_answer, r.greedy_reward, None, "greedy", r.greedy_correct, NO_GROUP)
            columns.append(greedy)
        rows += [
            {
                "prompt": r.question,
                "completion": completion,
                "answer": answer,
                "gold": r.gold,
                "reward": reward,
                "advantage": advantage,
                "sample": sample,
                "correct": correct,
                "level": r.level,
                "note": note,
            }
            for completion, answer, reward, advantage, sample, correct, note in columns
        ]
    left_out = ("advantage", "note") if advantages is None else ()
    return {key: [row[key] for row in rows] for key in rows[0] if key not in left_out} if rows else {}


class ResultsFile:
    """A JSONL file of results in the problems' order, written batch by batch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[ProblemResult]:
        """The stored results. An unfinished last line, left by a kill, is cut off and logged.

        Raises:
            ValueError: for a complete line that holds no result.
        """
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            log.warning("%s: dropped an unfinished last line (%d bytes)", self.path, len(content) - len(whole))
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        results = []
        for number, line in enumerate(whole.decode("utf-8").split("\n")[:-1], 1):
            try:
                results.append(ProblemResult.from_json(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"{self.path}:{number} holds no result of an evaluation ({error}); remove the file to evaluate anew"
                ) from error
        return results

    def append(self, results: Sequence[ProblemResult]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write("".join(f"{result.to_json()}\n" for result in results))
