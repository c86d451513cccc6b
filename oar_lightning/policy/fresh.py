"""A small random policy with its own tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from oar_lightning.policy.pretrained import Policy


@dataclass(frozen=True)
class FreshPolicy:
    """A small, randomly initialised Qwen2 policy with a byte-level BPE tokenizer that is trained on given texts."""

    hidden_size: int = 96
    num_layers: int = 3
    num_heads: int = 4
    num_kv_heads: int = 2
    intermediate_size: int = 256
    vocab_size: int = 512
    max_position_embeddings: int = 2048
    seed: int = 0
    lora: None = field(default=None)

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(
                "policy.hidden_size must be a multiple of 2 * policy.num_heads (rotary halves), "
                f"got {self.hidden_size} with num_heads={self.num_heads}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"policy.num_kv_heads must divide policy.num_heads, got {self.num_kv_heads} with num_heads={self.num_heads}"
            )
        if self.vocab_size < 260:
            raise ValueError(f"policy.vocab_size must hold 256 bytes and 2 special tokens: >= 260, got {self.vocab_size}")

    def build(self, texts: Iterable[str]) -> Policy:
        """Train the tokenizer on `texts` and draw the weights from `seed`."""
        from transformers import Qwen2Config, Qwen2ForCausalLM

        tokenizer = train_tokenizer(texts, self.vocab_size)
        config = Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            max_position_embeddings=self.max_position_embeddings,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            model = Qwen2ForCausalLM(config)
        return Policy(model.eval(), tokenizer)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """A byte-level BPE tokenizer with Qwen2's splitting rules (single digits), which can encode every text.

    `AutoTokenizer` applies these rules to every Qwen2 model, whatever its tokenizer.json says: a tokenizer with other rules
    would split texts differently after saving and loading.
    """
    from transformers import Qwen2Tokenizer

    special = {"eos_token": "<|endoftext|>", "pad_token": "<|pad|>", "unk_token": None}
    blank = Qwen2Tokenizer(vocab={}, merges=[], **special)
    tokenizer = blank.train_new_from_iterator(texts, vocab_size, show_progress=False)
    tokenizer.padding_side = "left"
    return tokenizer
