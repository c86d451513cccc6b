"""Prompt templates."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
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


def test_a_template_reads_its_own_arguments() -> None:
    given = tokenizer(TEMPLATE + "{% if enable_thinking is defined %}thinks: {{ enable_thinking }}{% endif %}")
    assert (
        ChatPrompt(tokenizer=given, chat_template_kwargs={"enable_thinking": False}).render(PROBLEM).endswith("thinks: False")
    )
    assert ChatPrompt(tokenizer=given).render(PROBLEM).endswith("<assistant>")


def test_a_template_that_writes_the_date_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    given = tokenizer("{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}" + TEMPLATE)
    fixed = ChatPrompt(tokenizer=given, chat_template_kwargs={"date_string": "26 Jul 2024"})
    assert fixed.render(PROBLEM).startswith("26 Jul 2024<user>")
    assert not caplog.records
    ChatPrompt(tokenizer=given)
    assert "prompts of two days differ" in caplog.text


def test_a_template_without_a_system_role_says_what_to_set() -> None:
    given = tokenizer("{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}")
    with pytest.raises(ValueError, match=r"data\.prompt\.system='Be brief\.'.*System role not supported.*data\.prompt\.suffix"):
        ChatPrompt(system="Be brief.", tokenizer=given).render(PROBLEM)


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
        begun = (self.puts and add_special_tokens) or text.startswith("<s>")
        return SimpleNamespace(input_ids=[0] * begun + [ord(c) for c in text.removeprefix("<s>")])


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_the_first_word_after_bos_is_that_of_the_tokenizer_itself(scheme: str) -> None:
    """Llama's tokenizers put a space before it, some of them at a text's beginning alone."""
    letters = {token: i for i, token in enumerate(["<unk>", "<s>", "▁", *"abAnhs?"])}
    raw = Tokenizer(models.BPE(letters, [], unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    given = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", unk_token="<unk>")
    text = PlainPrompt("{question}", tokenizer=given).render(MathProblem("Ann has?", "1"))
    assert given(text, add_special_tokens=False).input_ids == given("Ann has?").input_ids


@pytest.mark.parametrize(("puts", "expected"), [(True, "<s>Q?"), (False, "Q?")])
def test_a_plain_prompt_begins_as_the_tokenizer_begins_texts(puts: bool, expected: str) -> None:
    assert PlainPrompt("{question}", tokenizer=Begins(puts)).render(MathProblem("Q?", "1")) == expected
