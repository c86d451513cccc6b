"""Answer spans and token regions on real text: recorded outputs of models and worked solutions."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
from support.fixtures import built_in_policy
from support.shared_data import rows_of
from support.tokenizer_kinds import byte_level, sentencepiece

from oar_lightning.answers.span import AnswerFormat, Region, find_answer, token_regions
from oar_lightning.answers.verifier import Verdict, Verifier
from oar_lightning.policy.token_text import TokenBytes

KINDS = ["qwen2", "gpt2", "gpt2-numbers", "sentencepiece", "built-in"]
SAMPLED = 12
"""The default suite takes one text in so many; the slow one takes all."""


@functools.cache
def texts() -> list[str]:
    outputs = [r["completion"] for f in ("gsm8k_model_outputs.jsonl.gz", "math_model_outputs.jsonl") for r in rows_of(f)]
    return outputs + [r["solution"] for r in rows_of("math_train.jsonl.gz")]


@functools.cache
def tokenizer_of(kind: str) -> tuple[Any, TokenBytes]:
    if kind == "built-in":
        tokenizer = built_in_policy().tokenizer
    elif kind == "sentencepiece":
        tokenizer = sentencepiece("bpe", texts()[::20], 1500)
    else:
        tokenizer = byte_level(kind, texts()[::20], 1500)
    return tokenizer, TokenBytes(tokenizer)


def check_regions(text: str, ids: list[int], token_bytes: TokenBytes) -> None:
    """In order; the answer's tokens hold the answer's bytes, and none of them only others'."""
    decoded = token_bytes.decode(ids)
    assert decoded.text == text
    span = find_answer(decoded.text)
    regions = token_regions(decoded.spans, span)
    assert len(regions) == len(ids)
    assert list(regions) == sorted(regions)
    if span is None:
        assert set(regions) <= {Region.REASONING}
        return
    before, answer = text[: span.start].encode(), text[span.start : span.end].encode()
    edges, position = [], 0
    for token in ids:
        size = len(token_bytes.of(token))
        edges.append((position, position + size))
        position += size
    inside = [i for i, region in enumerate(regions) if region is Region.ANSWER]
    assert inside == [i for i, (a, b) in enumerate(edges) if a < len(before) + len(answer) and b > len(before)]
    held = b"".join(token_bytes.of(ids[i]) for i in inside)
    assert answer in held
    conclusion = len(text[: span.conclusion].encode())
    assert all(b <= conclusion for (a, b), region in zip(edges, regions, strict=True) if region is Region.REASONING)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [SAMPLED, pytest.param(1, marks=pytest.mark.slow)])
def test_regions_of_real_completions(kind: str, step: int) -> None:
    tokenizer, token_bytes = tokenizer_of(kind)
    spans = 0
    for text in texts()[::step]:
        if "▁" in text and kind == "sentencepiece":
            continue
        ids = tokenizer(text, add_special_tokens=False).input_ids
        check_regions(token_bytes.decode(ids).text, ids, token_bytes)
        spans += find_answer(text) is not None
    assert spans > 0.98 * len(texts()[::step])


@pytest.mark.parametrize("kind", KINDS)
def test_regions_do_not_need_the_canonical_split(kind: str) -> None:
    """Any token may be spelled by smaller ones, down to its bytes: a policy samples such splits."""
    tokenizer, token_bytes = tokenizer_of(kind)
    by_bytes: dict[bytes, list[int]] = {}
    for token in range(len(tokenizer)):
        if piece := token_bytes.of(token):
            by_bytes.setdefault(piece, []).append(token)
    rng = random.Random(0)

    def respelled(token: int) -> list[int]:
        rest, out = token_bytes.of(token), []
        while rest:
            lengths = [n for n in range(1, len(rest) + 1) if rest[:n] in by_bytes]
            piece = rest[: rng.choice(lengths)]
            out.append(rng.choice(by_bytes[piece]))
            rest = rest[len(piece) :]
        return out

    for text in texts()[:: SAMPLED * 8]:
        canonical = tokenizer(text, add_special_tokens=False).input_ids
        ids = [piece for token in canonical for piece in (respelled(token) if rng.random() < 0.4 else [token])]
        check_regions(token_bytes.decode(canonical).text, ids, token_bytes)


@pytest.mark.parametrize("file", ["gsm8k_model_outputs.jsonl.gz", "math_model_outputs.jsonl"])
def test_a_completion_cut_before_its_answer_closes_states_none(file: str) -> None:
    """Cut anywhere from the last marker to just before the end of its answer; nothing is left to be judged."""
    rng = random.Random(1)
    cuts = 0
    for row in rows_of(file):
        text = row["completion"]
        span = find_answer(text)
        if span is None:
            continue
        for cut in {span.end, span.start, rng.randint(span.start, span.end)}:
            assert find_answer(text[:cut], complete=False) is None, text[-80:]
            cuts += 1
    assert cuts > 700


def test_verdicts_agree_with_the_labels() -> None:
    verifier = Verifier()
    try:
        for file, wrong_labels in (
            ("gsm8k_model_outputs.jsonl.gz", []),
            ("math_model_outputs.jsonl", ["qwen_math_cot_100/72/7"]),
        ):
            rows = rows_of(file)
            answers = []
            for row in rows:
                span = find_answer(row["completion"])
                answers.append(None if span is None else row["completion"][span.start : span.end])
            verdicts = verifier([row["answer"] for row in rows], answers)
            differing = [r["id"] for r, v in zip(rows, verdicts, strict=True) if (v is Verdict.CORRECT) != r["is_correct"]]
            assert differing == wrong_labels, "10000 is 10{,}000: that label is wrong"
    finally:
        verifier.close()


@pytest.mark.parametrize("file", ["gsm8k_train.jsonl.gz", "gsm8k_test.jsonl", "math_train.jsonl.gz", "math500.jsonl"])
def test_gold_answers_are_found_in_the_solutions(file: str) -> None:
    rows = rows_of(file)
    missing = []
    verifier = Verifier()
    stated = []
    for row in rows:
        span = find_answer(row["solution"], AnswerFormat())
        stated.append(None if span is None else row["solution"][span.start : span.end])
    verdicts = verifier([row["answer"] for row in rows], stated)
    missing = [row["id"] for row, verdict in zip(rows, verdicts, strict=True) if verdict is not Verdict.CORRECT]
    empty = ["math/train/number_theory/7115.json", "math/train/number_theory/7117.json"]
    assert missing == (empty if file.startswith("math_train") else [])
    verifier.close()
