"""What a second prompt tells."""

from __future__ import annotations

import torch
from support.toy import rollouts_of

from oar_lightning.credit.hints import HINTS, OF_GROUPS
from oar_lightning.types import MathProblem


def test_hints_of_each_kind() -> None:
    problems = (MathProblem("q", " 12 ", "7+5=12\n"),) * 3 + (MathProblem("p", ""),)
    rollouts = rollouts_of(
        [{"before": [1], "tail": [2]}] * 4,
        group_size=4,
        advantages=torch.tensor([1.0, -1.0, -0.5, 0.0]),
        problems=problems,
        answers=("12", "13", None, None),
        completions=(" right\n", "wrong", "none", "tie"),
    )
    found = {kind: [hint(rollouts, row) for row in range(4)] for kind, hint in HINTS.items()}
    assert found == {
        "answer": ["The answer is 12."] * 3 + [None],
        "solution": ["7+5=12\nThe answer is 12."] * 3 + [None],
        "correct_sibling": [None] + ["A solution:\nright"] * 3,
        "wrong_sibling": ["A solution:\nwrong", "A solution:\nnone", "A solution:\nwrong", "A solution:\nwrong"],
        "feedback": [None, "An attempt ended in 13, which is wrong.", "An attempt had no final answer.", None],
    }
    assert set(HINTS) > OF_GROUPS


def test_feedback_calls_no_right_answer_wrong() -> None:
    """Where another term of the reward makes a right completion worse than the group."""
    rollouts = rollouts_of(
        [{"before": [1], "tail": [2]}] * 2,
        group_size=2,
        advantages=torch.tensor([1.0, -1.0]),
        problems=(MathProblem("q", " 12 "),) * 2,
        answers=("12", "12"),
        completions=("short", "too long"),
    )
    assert [HINTS["feedback"](rollouts, row) for row in range(2)] == [None, None]
