"""Bytes and character spans of token ids, held against the tokenizers' own decoders."""

from __future__ import annotations

import functools
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tokenizer_kinds import byte_level, sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from oar_lightning.policy.token_text import TokenBytes, TokenizedText, encodable

TEXTS = ["So we get 7+4=11 apples.\n", "The answer is \\boxed{11}.", "Énfin: déjà vu 日本語 😀😀", "#### 18\n"] * 8
SAMPLES = [
    "",
    "So we get 7+4=11.\nThe answer is \\boxed{11}.",
    "  two spaces,\ttab\r\nand a trailing one ",
    "naïve café — 日本語 👩‍👩‍👧 \U0001f600\x00\x7f",
    "e\u0301",
]


KINDS = ["qwen2", "gpt2", "bpe", "unigram"]


@functools.cache
def tokenizer_of(kind: str) -> tuple[Any, TokenBytes]:
    tokenizer = byte_level(kind, TEXTS) if kind in ("qwen2", "gpt2") else sentencepiece(kind, TEXTS)
    return tokenizer, TokenBytes(tokenizer)


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def check_spans(decoded: TokenizedText, lengths: list[int]) -> None:
    """Each token's span is the range of characters whose bytes it holds, by comparison of byte ranges."""
    ranges, position = [], 0
    for character in decoded.text:
        size = len(as_bytes(character))
        ranges.append((position, position + size))
        position += size
    assert position == sum(lengths)
    start = 0
    for (begin, end), length in zip(decoded.spans, lengths, strict=True):
        held = [i for i, (a, b) in enumerate(ranges) if a < start + length and b > start]
        if length:
            assert list(range(begin, end)) == held
        else:
            assert begin == end == sum(b <= start for _, b in ranges)
        start += length


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(text=st.one_of(st.sampled_from(SAMPLES), st.text()))
def test_text_comes_back(kind: str, text: str) -> None:
    tokenizer, token_bytes = tokenizer_of(kind)
    text = unicodedata.normalize("NFC", text).replace("▁", "_")  # Qwen2 composes; to SentencePiece ▁ is a space
    ids = tokenizer(text, add_special_tokens=False).input_ids
    decoded = token_bytes.decode(ids)
    assert decoded.text == text
    assert "".join(decoded.pieces()) == text
    assert len(decoded.pieces()) == len(ids)
    check_spans(decoded, [len(token_bytes.of(i)) for i in ids])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_ids_agree_with_the_tokenizers_own_decoder(kind: str, data: st.DataObject) -> None:
    """Sampled ids are no canonical tokenization and may be no UTF-8: the replacement character marks the same places."""
    tokenizer, token_bytes = tokenizer_of(kind)
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=30))
    decoded = token_bytes.decode(ids)
    check_spans(decoded, [len(token_bytes.of(i)) for i in ids])
    assert as_bytes(decoded.text) == b"".join(token_bytes.of(i) for i in ids)
    expected = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    if kind in ("qwen2", "gpt2"):
        assert as_bytes(decoded.text).decode("utf-8", "replace") == expected
    elif "\ufffd" not in expected:  # the byte fallback marks invalid bytes one by one
        assert decoded.text == expected
    joined = "".join(decoded.pieces())
    joined.encode()  # nothing that cannot be written to a file
    if all(not 0xD800 <= ord(c) < 0xE000 for c in decoded.text):
        assert joined == decoded.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("before", "text"),
    [("The answer is \\boxed{", "11"), ("The answer is ", "18"), ("", "7+4"), ("#### ", ""), ("e\u0301 is ", "déjà")],
)
def test_texts_are_encoded_with_what_is_before_them(kind: str, before: str, text: str) -> None:
    tokenizer, token_bytes = tokenizer_of(kind)
    ahead, own = token_bytes.encode(before, text)
    assert [*ahead, *own] == tokenizer(before + text, add_special_tokens=False).input_ids
    wanted, alone = (unicodedata.normalize("NFC", token_bytes.decode(ids).text) for ids in (own, ahead))
    assert wanted.endswith(unicodedata.normalize("NFC", text))
    assert unicodedata.normalize("NFC", before).startswith(alone.strip())
    assert not text or len(wanted) <= len(text) + 1, "at most a space of what is before"


def test_a_token_of_cue_and_answer_is_the_answers() -> None:
    token_bytes = TokenBytes(byte_level("gpt2-numbers", ["It is 18 and 18 and 18."] * 9))
    ahead, own = token_bytes.encode("It is ", "18")
    assert [token_bytes.decode(ids).text for ids in (ahead, own)] == ["It is", " 18"]


def test_a_character_split_over_tokens_belongs_to_all_of_them() -> None:
    tokenizer, token_bytes = tokenizer_of("bpe")
    ids = [tokenizer.convert_tokens_to_ids(f"<0x{b:02X}>") for b in "😀".encode()]
    eos = tokenizer.eos_token_id
    decoded = token_bytes.decode([*ids[:2], eos, *ids[2:], eos])
    assert decoded == TokenizedText("😀", ((0, 1), (0, 1), (0, 0), (0, 1), (0, 1), (1, 1)))
    assert decoded.pieces() == ["😀", "", "", "", "", ""]


def test_bytes_that_are_no_utf8_are_single_characters() -> None:
    tokenizer, token_bytes = tokenizer_of("unigram")
    ids = [tokenizer.convert_tokens_to_ids(t) for t in ("1", "<0xE2>", "<0x82>", "1", "<0xED>", "<0xA0>", "<0x80>")]
    decoded = token_bytes.decode(ids)
    assert as_bytes(decoded.text) == b"1\xe2\x821\xed\xa0\x80"
    assert decoded.spans == tuple((i, i + 1) for i in range(7))


def test_special_tokens_are_empty_and_added_ones_are_text() -> None:
    tokenizer, token_bytes = tokenizer_of("gpt2")
    ids = tokenizer("a<|user|>b<think>c→üd<|end|>", add_special_tokens=False).input_ids
    decoded = token_bytes.decode(ids)
    assert decoded.text == "ab<think>c→üd"
    assert decoded.spans[1] == (1, 1)
    assert decoded.spans[-1] == (13, 13)


def test_reserved_tokens_are_special_though_nothing_names_them() -> None:
    tokenizer = byte_level("gpt2", TEXTS)
    tokenizer.backend_tokenizer.add_tokens([AddedToken("<|end_of_text|>", special=True)])
    end = tokenizer.convert_tokens_to_ids("<|end_of_text|>")
    assert end not in tokenizer.all_special_ids
    assert TokenBytes(tokenizer).decode([*tokenizer("#### 18").input_ids, end]).text == "#### 18"


def test_further_tokens_that_end_a_text_are_no_text_though_the_tokenizer_does_not_call_them_special() -> None:
    tokenizer = byte_level("gpt2", TEXTS)
    tokenizer.backend_tokenizer.add_tokens([AddedToken("<|im_end|>", special=False)])
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    ids = [*tokenizer("#### 18").input_ids, end]
    assert TokenBytes(tokenizer).decode(ids).text == "#### 18<|im_end|>"
    assert TokenBytes(tokenizer, [end]).decode(ids).text == "#### 18"


@pytest.mark.parametrize("kind", ["bpe", "unigram", "gpt2"])
def test_runs_of_spaces_that_were_added_to_the_vocabulary_are_spaces(kind: str) -> None:
    """Gemma has its runs so, spelled with the vocabulary's sign of a space; in a byte-level one that sign is a letter."""
    tokenizer = byte_level(kind, TEXTS) if kind == "gpt2" else sentencepiece(kind, TEXTS)
    tokenizer.backend_tokenizer.add_tokens([AddedToken("▁▁▁", special=False, normalized=False)])
    ids = [*tokenizer("is", add_special_tokens=False).input_ids, tokenizer.convert_tokens_to_ids("▁▁▁")]
    text = TokenBytes(tokenizer).decode(ids).text
    assert text.strip() == tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False).strip()
    assert text.endswith("▁▁▁" if kind == "gpt2" else "is   ")


@pytest.mark.parametrize(
    ("text", "expected"), [("é😀", "é😀"), ("a\udcffb", "a\ufffdb"), ("\udce2\udc82+", "\ufffd\ufffd+"), ("", "")]
)
def test_a_text_that_can_be_encoded_is_as_long(text: str, expected: str) -> None:
    assert encodable(text) == expected
    encodable(text).encode()


def test_ids_beyond_the_tokenizer_are_empty() -> None:
    tokenizer, token_bytes = tokenizer_of("qwen2")
    assert token_bytes.of(len(tokenizer) + 5) == b""


def test_a_prefix_space_is_kept() -> None:
    tokenizer, token_bytes = tokenizer_of("prepend")
    assert token_bytes.decode(tokenizer("the 18", add_special_tokens=False).input_ids).text == " the 18"


def word_piece(lowercase: bool) -> Tokenizer:
    vocab = {"[UNK]": 0} | {p + chr(c): 0 for p in ("", "##") for c in range(33, 127)} | {"é": 0, "e": 0}
    raw = Tokenizer(models.WordPiece({t: i for i, t in enumerate(vocab)}, unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return raw


def word_level() -> Tokenizer:
    words = ["[UNK]", "So", ",", "12", "+", "3", "=", "15"]
    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s"), "removed")
    return raw


@pytest.mark.parametrize("raw", [word_piece(True), word_piece(False), word_level()], ids=["lower", "cased", "words"])
def test_other_kinds_are_refused(raw: Tokenizer) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]")
    with pytest.raises(ValueError, match=r"policy\.name.*neither byte-level nor SentencePiece-like"):
        TokenBytes(tokenizer)


def test_decoding_is_linear() -> None:
    """A long completion of multi-byte characters takes well under a second."""
    tokenizer, token_bytes = tokenizer_of("qwen2")
    text = "日本語😀 " * 20_000
    decoded = token_bytes.decode(tokenizer(text, add_special_tokens=False).input_ids)
    assert decoded.text == text
    assert "".join(decoded.pieces()) == text
