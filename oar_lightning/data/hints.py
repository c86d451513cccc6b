"""Second prompts: a problem that tells more than the policy had when it answered."""

from __future__ import annotations

import dataclasses
import string

from oar_lightning.types import MathProblem

TEMPLATE = "{question}\n{hint}"


def hinted(problem: MathProblem, text: str, template: str = TEMPLATE) -> MathProblem:
    """The problem with a text that its question tells. An empty text tells nothing, and the problem stays as it is."""
    return dataclasses.replace(problem, question=template.format(question=problem.question, hint=text)) if text else problem


def telling(answer: str) -> str:
    """The text that tells an answer."""
    return f"The answer is {answer}."


def telling_solution(solution: str) -> str:
    """The text that tells a whole solution. Right and wrong ones are told in the same words."""
    return f"A solution:\n{solution.strip()}"


def telling_wrong(answer: str) -> str:
    """The text that tells that an answer is wrong."""
    return f"An attempt ended in {answer}, which is wrong."


def is_template(text: str) -> bool:
    """Whether a format string has the fields {question} and {hint}, and no other."""
    try:
        fields = [(name, spec, conversion) for _, name, spec, conversion in string.Formatter().parse(text) if name is not None]
    except ValueError:  # a single brace
        return False
    return set(fields) == {("question", "", None), ("hint", "", None)}
