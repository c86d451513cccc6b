"""Prompt templates: the text of a problem that the policy continues."""

from __future__ import annotations

import logging
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from oar_lightning.common.messages import one_line
from oar_lightning.types import MathProblem

log = logging.getLogger(__name__)


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
    """The text of the BOS token where a tokenizer puts it before every text, as Llama's does; empty where it does not.

    Some tokenizers put a space before the first word of a text, which a text that begins with BOS has to hold itself.
    """
    whole, alone = tokenizer("a").input_ids, tokenizer("a", add_special_tokens=False).input_ids
    if whole[:1] != [tokenizer.bos_token_id] or whole[1 : 1 + len(alone)] != alone:
        return ""
    texts = [tokenizer.bos_token + space for space in ("", " ")]
    found: list[str] = [t for t in texts if tokenizer(t + "a", add_special_tokens=False).input_ids[: len(whole)] == whole]
    return found[0] if found else texts[0]


TODAY, DATE = "strftime_now", "date_string"
"""What a template writes the date with, and the argument that most of them read in its place."""


class ChatPrompt(PromptTemplate):
    """The tokenizer's own chat template, with an optional system message and a suffix after the question.

    `chat_template_kwargs`: what the template reads beside messages, e.g. `enable_thinking` of Qwen3's, `date_string` of
    Llama 3's.
    """

    def __init__(
        self,
        system: str | None = None,
        suffix: str = "\nPlease reason step by step, and put your final answer within \\boxed{}.",
        tokenizer: Any = None,
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.system = system
        self.suffix = suffix
        self.tokenizer = tokenizer
        self.chat_template_kwargs = dict(chat_template_kwargs)
        template = getattr(tokenizer, "chat_template", None)
        if isinstance(template, str) and TODAY in template and DATE not in self.chat_template_kwargs:
            log.warning(
                "data/prompt=chat: the tokenizer's chat template writes today's date, so that prompts of two days differ; say "
                "which, where it reads one: '+data.prompt.chat_template_kwargs.%s=\"26 Jul 2024\"'",
                DATE,
            )

    def render(self, problem: MathProblem) -> str:
        if self.tokenizer is None or self.tokenizer.chat_template is None:
            raise ValueError(
                "data/prompt=chat needs a tokenizer with a chat template, and this policy's has none; use data/prompt=plain"
            )
        messages = [{"role": "user", "content": problem.question + self.suffix}]
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system})
        render = self.tokenizer.apply_chat_template
        try:
            text: str = render(messages, tokenize=False, add_generation_prompt=True, **self.chat_template_kwargs)
        except Exception as error:  # a template raises what its author chose
            settings = f"data.prompt.system={self.system!r} and chat_template_kwargs={self.chat_template_kwargs}"
            raise ValueError(
                f"data/prompt=chat: the tokenizer's chat template refuses {settings} ({one_line(error)}); many have no place "
                "for a system message: set data.prompt.system=null, with what it says in data.prompt.suffix"
            ) from error
        return text
