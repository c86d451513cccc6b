"""Tokenizers of the kinds that policies come with, trained on given texts."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from oar_lightning.policy.fresh import train_tokenizer


def byte_level(kind: str, texts: list[str], vocab_size: int = 400) -> Any:
    """Trained on the texts: `qwen2`, `gpt2` or `gpt2-numbers`."""
    if kind == "qwen2":
        tokenizer = train_tokenizer(texts, vocab_size)
    else:  # GPT-2's kind; `gpt2` keeps digits apart, `gpt2-numbers` has tokens such as " 18"
        raw = Tokenizer(models.BPE())
        level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        digits = pre_tokenizers.Digits(individual_digits=True)
        raw.pre_tokenizer = level if kind == "gpt2-numbers" else pre_tokenizers.Sequence([digits, level])
        raw.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        raw.train_from_iterator(
            texts, trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
        )
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>", pad_token="<|pad|>")
    tokenizer.add_tokens(["<think>", "→ü"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    return tokenizer


def sentencepiece(kind: str, texts: list[str], vocab_size: int = 200) -> Any:
    """Llama 2's kind: ▁ for spaces, bytes of unknown characters as <0x..>."""
    special, in_bytes = ["<unk>", "<s>", "</s>"], [f"<0x{b:02X}>" for b in range(256)]
    if kind == "unigram":
        pieces = ["▁", "▁the", "▁answer", "is", "▁1", "oxed", "日本", *map(chr, range(0x20, 0x7F))]
        model = models.Unigram([(t, -3.0) for t in [*special, *in_bytes, *pieces]], unk_id=0, byte_fallback=True)
    else:
        seed = Tokenizer(models.BPE(unk_token="<unk>"))
        seed.normalizer = normalizers.Replace(" ", "▁")
        seed.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special, show_progress=False))
        learned = json.loads(seed.to_str())["model"]
        order = [*special, *in_bytes, *(t for t in learned["vocab"] if t not in special)]
        vocab = {token: i for i, token in enumerate(order)}
        model = models.BPE(vocab, [tuple(m) for m in learned["merges"]], unk_token="<unk>", byte_fallback=True)
    raw = Tokenizer(model)
    raw.normalizer = normalizers.Replace(" ", "▁")
    if kind == "prepend":
        raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    tokenizer.add_tokens(["<think>"])
    return tokenizer
