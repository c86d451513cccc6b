"""Segments of real texts: recorded outputs of models under five kinds of tokenizers."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fixtures import LengthReward, built_in_policy, make_stage
from support.shared_data import rows_of
from support.tokenizer_kinds import byte_level, sentencepiece
from support.toy import padded
from transformers import Qwen2Config, Qwen2ForCausalLM

from oar_lightning.credit.segments import (
    EntropyCuts,
    FixedLength,
    LowProbabilityCuts,
    Segmenter,
    Sentences,
    TextCuts,
    segment_numbers,
)
from oar_lightning.data.chain.credit import step_ends
from oar_lightning.inspection.recorded import RecordedCompletion, encode_recorded, to_generation
from oar_lightning.policy.pretrained import Policy
from oar_lightning.types import MathProblem, Rollouts

KINDS = ["qwen2", "gpt2-numbers", "bpe", "unigram", "built-in"]
"""Byte-level BPE with and without numbers as tokens, SentencePiece's BPE and Unigram, and the built-in policy's."""
ROWS, LONGEST = 5, 400
SHORT = st.integers(1, 12)
STRATEGIES: dict[str, st.SearchStrategy[Segmenter]] = {
    "fixed_length": st.builds(FixedLength, st.integers(1, 60)),
    "sentences": st.builds(Sentences, shortest=SHORT),
    "task_steps": st.builds(TextCuts, st.just(step_ends), SHORT),
    "entropy": st.builds(EntropyCuts, st.floats(0.01, 1), SHORT),
    "low_probability": st.builds(LowProbabilityCuts, st.floats(0.001, 1), st.integers(1, 9)),
}


@functools.cache
def recorded() -> tuple[RecordedCompletion, ...]:
    rows = [r for f in ("gsm8k_model_outputs.jsonl.gz", "math_model_outputs.jsonl") for r in rows_of(f)[::7]]
    rows = [r for r in rows if 100 < len(r["completion"]) < LONGEST and "▁" not in r["completion"]]
    chosen = rows[:: len(rows) // ROWS][:ROWS]
    return tuple(RecordedCompletion(r["id"], MathProblem(r["problem"], r["answer"]), r["completion"]) for r in chosen)


@functools.cache
def case(kind: str) -> tuple[Any, Rollouts]:
    """A small policy of random weights, float64, and the completions as its rollouts."""
    texts = [r.text for r in recorded()]
    if kind == "built-in":
        tokenizer = built_in_policy().tokenizer
    elif kind in ("bpe", "unigram"):
        tokenizer = sentencepiece(kind, texts, 500)
        tokenizer.pad_token = tokenizer.eos_token
    else:
        tokenizer = byte_level(kind, texts, 600)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=2, initializer_range=1.0, **sizes)
    model = Qwen2ForCausalLM(config).double()
    stage = make_stage(Policy(model, tokenizer), LengthReward())
    encoded = encode_recorded(list(recorded()), tokenizer, stage.prompt)
    generation = to_generation(encoded, 0, torch.device("cpu"))
    rollouts = stage.judge(generation, [r.problem for r in recorded()], 1, 0)
    return model, dataclasses.replace(rollouts, prediction_states=None)


def test_the_tokenizers_divide_the_texts_in_their_own_ways() -> None:
    counts = {kind: case(kind)[1].response_mask.sum(1).tolist() for kind in KINDS}
    assert len({tuple(n) for n in counts.values()}) == 5
    for kind in KINDS:
        rollouts = case(kind)[1]
        assert rollouts.completions == tuple(r.text for r in recorded())
        assert rollouts.reasoning_mask.any(1).all()
        assert (rollouts.answer_mask.any(1)).sum() >= ROWS - 1


def check(kind: str, segmenter: Segmenter, rows: list[int], left: int, right: int) -> None:
    """Each reasoning token is in one segment, in order. Rows in another order, with fewer beside them, and padding change
    nothing."""
    model, rollouts = case(kind)
    mask = rollouts.reasoning_mask
    starts = segmenter(model, rollouts, mask)
    numbers = segment_numbers(starts, mask)
    assert torch.equal(numbers >= 0, mask), "every reasoning token is in a segment, and no other"
    for row in range(ROWS):
        own = numbers[row, mask[row]]
        assert int(own[0]) == 0
        assert set(own.diff().tolist()) <= {0, 1}, "in order, none left out"
        assert int(own.bincount().min()) >= min(getattr(segmenter, "shortest", 1), len(own))
    part = padded(rollouts.select(torch.tensor(rows)), left, right)
    again = segmenter(model, part, part.reasoning_mask)
    assert not again[~part.reasoning_mask].any()
    for place, row in enumerate(rows):
        assert torch.equal(again[place, part.reasoning_mask[place]], starts[row, mask[row]])


EVERY = [pytest.mark.parametrize("strategy", STRATEGIES), pytest.mark.parametrize("kind", KINDS)]
SOME_ROWS = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=3, unique=True)
PADDING = st.integers(0, 5)


@EVERY[0]
@EVERY[1]
@settings(max_examples=3, deadline=None, derandomize=True)
@given(data=st.data(), rows=SOME_ROWS, left=PADDING, right=PADDING)
def test_segments_cover_the_reasoning(kind: str, strategy: str, data: st.DataObject, rows: Any, left: int, right: int) -> None:
    check(kind, data.draw(STRATEGIES[strategy]), rows, left, right)


@pytest.mark.slow
@EVERY[0]
@EVERY[1]
@settings(max_examples=100, deadline=None)
@given(data=st.data(), rows=SOME_ROWS, left=PADDING, right=PADDING)
def test_many_segments_cover_it(kind: str, strategy: str, data: st.DataObject, rows: Any, left: int, right: int) -> None:
    check(kind, data.draw(STRATEGIES[strategy]), rows, left, right)


@pytest.mark.parametrize("kind", KINDS)
def test_sentences_begin_behind_stops_and_line_ends_and_nowhere_else(kind: str) -> None:
    """Read off the tokens' places in the text. A tokenizer's piece may hold the end of one sentence and the begin of the
    next."""
    model, rollouts = case(kind)
    starts = Sentences()(model, rollouts, rollouts.response_mask)
    begun_behind = {"stop": 0, "line end": 0}
    for row, text in enumerate(rollouts.completions):
        begun = starts[row, rollouts.response_mask[row]].tolist()
        spans = rollouts.token_spans[row]
        for i in range(1, len(spans)):
            (former, _), (begin, _) = spans[i - 1], spans[i]
            spaces = text[begin : len(text) - len(text[begin:].lstrip())]
            if begin > former and "\n" not in spaces and text[begin:].strip():
                if text[begin - 1] == "\n":
                    assert begun[i]
                    begun_behind["line end"] += 1
                elif text[begin - 1] in ".!?" and spaces:
                    assert begun[i]
                    begun_behind["stop"] += 1
            assert not begun[i] or re.search(r"[.!?\n]\s*$", text[:begin]) or re.search(r"[.!?\n]", text[former:begin])
    assert begun_behind["line end"] > 0
    assert begun_behind["stop"] > 0 or kind == "bpe", "whose pieces hold a stop, the space and what follows"
