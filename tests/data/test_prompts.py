"""Prompt templates."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from oar_lightning.data.prompts import ChatPrompt, PlainPrompt
from oar_lightning.types import MathProblem

PROBLEM = MathProblem("What is {x} in 5{x}=10?", "2")
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{question}\n", "What is {x} in 5{x}=10?\n"),
        ("Q: {question}\nUse \\boxed{{}}.\nA:", "Q: What is {x} in 5{x}=10?\nUse \\boxed{}.\nA:"),
        ("{question} {question}", "What is {x} in 5{x}=10? What is {x} in 5{x}=10?"),
    ],
)
def test_plain(template: str, expected: str) -> None:
    assert PlainPrompt(template).render(PROBLEM) == expected


def test_plain_by_default_ends_the_line() -> None:
    assert PlainPrompt().render(PROBLEM) == PROBLEM.question + "\n"


@pytest.mark.parametrize(
    "template", ["", "Solve:", "{problem}", "{question} {answer}", "{}", "{question} \\boxed{}", "{question", "}"]
)
def test_bad_templates_say_what_to_write(template: str) -> None:
    with pytest.raises(ValueError, match=r"data\.prompt\.template must hold \{question\} and no other field.*doubled"):
        PlainPrompt(template)


def test_chat() -> None:
    prompt = ChatPrompt(system="Be brief.", suffix=" Box it.", tokenizer=tokenizer(TEMPLATE))
    assert prompt.render(PROBLEM) == f"<system>Be brief.</><user>{PROBLEM.question} Box it.</><assistant>"
    without = ChatPrompt(tokenizer=tokenizer(TEMPLATE)).render(PROBLEM)
    assert without.startswith(f"<user>{PROBLEM.question}\nPlease reason step by step")
    assert "\\boxed{}" in without


@pytest.mark.parametrize("given", [None, tokenizer(None)], ids=["no tokenizer", "no template"])
def test_chat_needs_a_template(given: PreTrainedTokenizerFast | None) -> None:
    with pytest.raises(ValueError, match=r"needs a tokenizer with a chat template.*use data/prompt=plain"):
        ChatPrompt(tokenizer=given).render(PROBLEM)


class Begins:
    """A tokenizer of letters that puts its BOS token before texts, or not."""

    bos_token, bos_token_id = "<s>", 0

    def __init__(self, puts: bool) -> None:
        self.puts = puts

    def __call__(self, text: str, add_special_tokens: bool = True) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[0] * (self.puts and add_special_tokens) + [ord(c) for c in text])


@pytest.mark.parametrize(("puts", "expected"), [(True, "<s>Q?"), (False, "Q?")])
def test_a_plain_prompt_begins_as_the_tokenizer_begins_texts(puts: bool, expected: str) -> None:
    assert PlainPrompt("{question}", tokenizer=Begins(puts)).render(MathProblem("Q?", "1")) == expected
