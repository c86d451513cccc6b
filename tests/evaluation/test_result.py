"""Results of problems: the file that keeps them, and the table of completions."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.results import PROBLEMS, result, run_evaluation

from oar_lightning.evaluation.result import NO_GROUP, NO_SIGNAL, ResultsFile, completions_table


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    results = [result([0, None, 1], 1, "Level \u2028 5"), result([None] * 3)]
    file = ResultsFile(tmp_path / "deep" / "x.jsonl")
    assert file.read() == []
    file.append(results[:1])
    file.append(results[1:])
    assert file.read() == results
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-5])  # a kill in the middle of a line
    assert file.read() == results[:1]
    file.append(results[1:])
    assert file.path.read_bytes() == whole
    file.path.write_text('{"id": 1}\n')
    with pytest.raises(ValueError, match=r"x\.jsonl:1 holds no result"):
        file.read()


def test_the_completions_table_has_a_row_for_every_completion() -> None:
    (batch,) = run_evaluation()
    table = completions_table(batch.results, [[0.1, 0.2, 0.3, 0.4]] * 5)
    assert list(table)[:6] == ["prompt", "completion", "answer", "gold", "reward", "advantage"]
    assert table["sample"] == [0, 1, 2, 3, "greedy"] * 5
    assert table["advantage"] == [0.1, 0.2, 0.3, 0.4, None] * 5
    sampled = [i for i, s in enumerate(table["sample"]) if s != "greedy"]
    assert [table["completion"][i] for i in sampled] == list(batch.rollouts.completions)
    assert table["correct"] == [c for r in batch.results for c in (*r.correct, r.greedy_correct)]
    assert table["level"] == [p.level for p in PROBLEMS for _ in range(5)]
    assert not {"advantage", "note"} & set(completions_table(batch.results)), "no advantages were computed"


def test_the_completions_table_says_why_an_advantage_is_0_or_missing() -> None:
    (batch,) = run_evaluation()
    table = completions_table(batch.results, [[1.0, -1.0, 0.0, 0.0]] + [[0.0] * 4] * 4)
    assert [cell for cell, a in zip(table["note"], table["advantage"], strict=True) if a is None] == [NO_GROUP] * 5
    assert table["note"][:4] == [""] * 4
    assert table["note"][5:9] == [NO_SIGNAL] * 4
