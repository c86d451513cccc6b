"""Second prompts."""

from __future__ import annotations

from oar_lightning.data.hints import hinted, is_template, telling
from oar_lightning.types import MathProblem


def test_a_text_is_told_after_the_question_and_an_empty_one_is_not() -> None:
    problem = MathProblem("What is {1} + 1?", "2", id="a")
    assert hinted(problem, telling("2")) == MathProblem("What is {1} + 1?\nThe answer is 2.", "2", id="a")
    assert hinted(problem, "{x}", "{hint} | {question}").question == "{x} | What is {1} + 1?"
    assert hinted(problem, "") is problem


def test_templates() -> None:
    assert is_template("{question}\n{hint}{hint}")
    assert not any(
        map(is_template, ["", "{hint}", "{question}", "{question}{hint:>9}", "{question}{hint}{}", "{question}{hint"])
    )
