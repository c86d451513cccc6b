"""Recorded completions: rows as they are read, and tokens as they would have been sampled."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.fixtures import make_stage, tiny_policy

from oar_lightning.answers.reward import Accuracy, Completion
from oar_lightning.data.prompts import PlainPrompt
from oar_lightning.inspection.recorded import (
    GoldOnly,
    RecordedCompletion,
    encode_recorded,
    read_recorded,
    to_generation,
)
from oar_lightning.types import MathProblem

POLICY = tiny_policy()
TOKENIZER = POLICY.tokenizer


def write(path: Path, rows: Sequence[Any]) -> Path:
    text = "".join(row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def read(*paths: Path | str) -> tuple[list[RecordedCompletion], Counter[str]]:
    dropped: Counter[str] = Counter()
    return list(read_recorded([str(p) for p in paths], dropped)), dropped


def test_rows_are_read_with_what_they_state(tmp_path: Path) -> None:
    full = {
        "id": 0,
        "problem": "1+1?",
        "completion": "two\u2028lines \\boxed{2}",
        "answer": 2,
        "is_correct": 1,
        "truncated": True,
        "level": 0,
        "source": "s",
        "problem_id": "p",
    }
    bare = {"question": "2+2?", "completion": ""}
    path = write(tmp_path / "a.jsonl", [full, "\n", bare])
    (first, second), dropped = read(path)
    assert first == RecordedCompletion(
        "0", MathProblem("1+1?", "2", "", "s", "0", "p"), "two\u2028lines \\boxed{2}", truncated=True, label=True
    )
    assert (second.id, second.problem.answer, second.label, second.truncated) == (f"{path}:3", "", None, False)
    assert not dropped
    packed = write(tmp_path / "a.jsonl.gz", [full])
    assert read(packed)[0] == [first]
    assert len(read(str(tmp_path / "a.*"))[0]) == 3


def test_completions_of_one_problem_share_its_id(tmp_path: Path) -> None:
    rows = [{"problem": q, "answer": a, "completion": "x"} for q, a in (("q", "1"), ("r", "1"), ("q", "2"), ("q", "1"))]
    ids = [c.problem.id for c in read(write(tmp_path / "a.jsonl", rows))[0]]
    assert len(set(ids)) == 3
    assert ids[0] == ids[3]


def test_unusable_rows_are_counted(tmp_path: Path) -> None:
    rows = [{"problem": None, "completion": "x"}, {"problem": " ", "completion": "x"}, {"problem": "q", "completion": None}]
    kept, dropped = read(write(tmp_path / "a.jsonl", rows))
    assert kept == []
    assert dropped == {"rows without a problem": 2, "rows without a completion": 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{\n", "a.jsonl:2 is not JSON"),
        ("[1]\n", "a.jsonl:2 holds a list"),
        ({"problem": "q"}, "a.jsonl:2 needs the columns problem (or question) and completion; it has ['problem']"),
        ({"completion": "x"}, "a.jsonl:2 needs the columns"),
        ({"problem": 3, "completion": "x"}, "a.jsonl:2: problem must be a text, got 3"),
        (
            {"problem": "q", "completion": "x", "answer": ["3"]},
            "a.jsonl:2: answer must be a text or a number, got ['3']",
        ),
        (
            {"problem": "q", "completion": "x", "answer": "2+3=5\n#### 5"},
            "a.jsonl:2: answer holds a worked solution, which ends with '5', and no answer alone; write its final answer there",
        ),
        ({"problem": "q", "completion": "x", "answer": True}, "a.jsonl:2: answer must be a text or a number, got True"),
        ({"problem": "q", "completion": "x", "is_correct": "yes"}, "is_correct must be true, false or null, got 'yes'"),
        ({"problem": "q", "completion": "x", "truncated": 2}, "truncated must be true, false or null, got 2"),
    ],
)
def test_a_row_that_is_wrong_is_an_error_with_its_place(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path / "a.jsonl", [{"problem": "q", "completion": "x"}, row])
    with pytest.raises(ValueError, match=re.escape(message)):
        read(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"score\.files=.*none\.jsonl: no such file"):
        read(tmp_path / "none.jsonl")


RECORDED = [
    RecordedCompletion("a", MathProblem("Ann has 3 apples. How many?", "3"), "So \\boxed{3}"),
    RecordedCompletion("b", MathProblem("Bob?", "4"), "Bob has 5 pens, hence \\boxed{5} é", label=False),
    RecordedCompletion("c", MathProblem("Cy has", "1"), "The answer is 1", truncated=True),
    RecordedCompletion("d", MathProblem("Di?", ""), "\\boxed{1}" + TOKENIZER.eos_token),
]


def test_tokens_are_those_of_prompt_and_text_with_eos_where_it_ended() -> None:
    encoded = encode_recorded(RECORDED, TOKENIZER, PlainPrompt("Q: {question}\n"))
    generation = to_generation(encoded, TOKENIZER.pad_token_id, torch.device("cpu"))
    eos = TOKENIZER.eos_token_id
    for row, recorded in enumerate(RECORDED):
        prompt = TOKENIZER(f"Q: {recorded.problem.question}\n").input_ids
        completion = TOKENIZER(recorded.text.removesuffix(TOKENIZER.eos_token)).input_ids
        completion += [] if recorded.truncated else [eos]
        attended = generation.attention_mask[row]
        assert generation.token_ids[row, attended].tolist() == prompt + completion
        assert generation.token_ids[row, generation.response_mask[row]].tolist() == completion
        used = attended.nonzero().flatten()
        assert used.tolist() == list(range(int(used[0]), int(used[-1]) + 1))
        assert len(encoded[row]) == len(used)
    assert generation.truncated.tolist() == [False, False, True, False]
    assert generation.response_mask.int().argmax(1).unique().numel() == 1, "completions begin in one column"


def test_judged_like_sampled_ones() -> None:
    stage = make_stage(POLICY)
    generation = to_generation(encode_recorded(RECORDED, TOKENIZER, PlainPrompt()), TOKENIZER.pad_token_id, torch.device("cpu"))
    rollouts = stage.judge(generation, [r.problem for r in RECORDED[:3]] + [MathProblem("Di?", "1")], 1, 0)
    assert rollouts.completions == (*(r.text for r in RECORDED[:3]), "\\boxed{1}")
    assert rollouts.answers == ("3", "5", None, "1")  # the third was cut off before its line ended
    assert rollouts.rewards.tolist() == [1.0, 0.0, 0.0, 1.0]
    alone = stage.judge(
        to_generation(encode_recorded(RECORDED[:1], TOKENIZER, PlainPrompt()), 0, torch.device("cpu")),
        [RECORDED[0].problem],
        1,
        0,
    )
    mine = rollouts.select(torch.tensor([0]))
    assert torch.equal(alone.token_ids, mine.token_ids)
    assert torch.equal(alone.reasoning_mask, mine.reasoning_mask)
    assert torch.equal(alone.answer_mask, mine.answer_mask)


def test_without_a_gold_answer_a_term_does_not_apply() -> None:
    problems = [MathProblem("q", ""), MathProblem("q", "2"), MathProblem("q", "")]
    completions = [Completion("", "2", False, 1)] * 3
    assert GoldOnly(Accuracy())(problems, completions) == [None, 1.0, None]
    assert GoldOnly(Accuracy())(problems[:1], completions[:1]) == [None]
    with pytest.raises(ValueError, match=r"reward\.terms\.mine returned None; expected a list of 1 numbers"):
        GoldOnly(lambda problems, completions: None, "reward.terms.mine")(problems, completions)


def test_other_columns_are_the_problem_s_extra(tmp_path: Path) -> None:
    row = {"problem": "1+1?", "completion": "2", "answer": 2, "id": 0, "steps": [1, 2], "judge": None}
    (found,), _ = read(write(tmp_path / "a.jsonl", [row]))
    assert dict(found.problem.extra) == {"steps": (1, 2), "judge": None}


def test_rows_in_the_form_of_mr_gsm8k(tmp_path: Path) -> None:
    row = {
        "uuid": "u1",
        "question": "2+2?",
        "ground_truth_answer": "4",
        "model_output_steps": ["Two and two.", "It is 5."],
        "model_output_answer_correctness": "wrong",
        "model_output_solution_first_error_step": 2,
    }
    (found, other), _ = read(write(tmp_path / "a.jsonl", [row, row | {"completion": "own", "answer": "5", "id": "mine"}]))
    assert (found.id, found.text, found.problem.answer, found.label) == ("u1", "Two and two.\nIt is 5.", "4", False)
    assert found.problem.extra["model_output_solution_first_error_step"] == 2
    assert found.problem.extra["model_output_steps"] == tuple(row["model_output_steps"])
    assert (other.id, other.text, other.problem.answer, other.label) == ("mine", "own", "5", None)


def test_a_question_counts_where_the_problem_is_null(tmp_path: Path) -> None:
    (one,), dropped = read(write(tmp_path / "a.jsonl", [{"problem": None, "question": "q", "completion": "x"}]))
    assert one.problem.question == "q"
    assert not dropped
