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
    """A format string with ``{question}`` in it, after the token that the tokenizer itself begins texts with (BOS), if any."""

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
        self.beginning = "" if tokenizer is None else beginning(tokenizer)

    def render(self, problem: MathProblem) -> str:
        return self.beginning + self.template.format(question=problem.question)


def beginning(tokenizer: Any) -> str:
    """The text of the BOS token where a tokenizer puts it before every text, as Llama's does; empty where it does not."""
    whole, alone = tokenizer("a").input_ids, tokenizer("a", add_special_tokens=False).input_ids
    begun = whole[:1] == [tokenizer.bos_token_id] and whole[1 : 1 + len(alone)] == alone
    return tokenizer.bos_token if begun else ""


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
