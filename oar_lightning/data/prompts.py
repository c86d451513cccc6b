"""Prompt templates: the text of a problem that the policy continues."""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from typing import Any

from oar_lightning.types import MathProblem


class PromptTemplate(ABC):
    """Renders a problem as a prompt."""

    @abstractmethod
    def render(self, problem: MathProblem) -> str: ...


class PlainPrompt(PromptTemplate):
    """A format string with ``{question}`` in it."""

    def __init__(self, template: str = "{question}\n", tokenizer: Any = None) -> None:
        try:
            fields = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        except ValueError:  # a single brace
            fields = set()
        if fields != {"question"}:
            raise ValueError(
                f"data.prompt.template must hold {{question}} and no other field, got {template!r} "
                "(write literal braces doubled: {{ and }})"
            )
        self.template = template

    def render(self, problem: MathProblem) -> str:
        return self.template.format(question=problem.question)


class ChatPrompt(PromptTemplate):
    """The tokenizer's own chat template, with an optional system message and a suffix after the question."""

    def __init__(
        self,
        system: str | None = None,
        suffix: str = "\nPlease reason step by step, and put your final answer within \\boxed{}.",
        tokenizer: Any = None,
    ) -> None:
        self.system = system
        self.suffix = suffix
        self.tokenizer = tokenizer

    def render(self, problem: MathProblem) -> str:
        if self.tokenizer is None or self.tokenizer.chat_template is None:
            raise ValueError(
                "data/prompt=chat needs a tokenizer with a chat template, and this policy's has none; use data/prompt=plain"
            )
        messages = [{"role": "user", "content": problem.question + self.suffix}]
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system})
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
