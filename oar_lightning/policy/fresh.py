"""A small random policy with its own tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from annotated_types import Interval

from oar_lightning.common.ranges import PositiveInt, Rule, checked
from oar_lightning.policy.induction import build_induction_heads
from oar_lightning.policy.pretrained import Policy


@checked(
    "policy",
    Rule(
        lambda hidden_size, num_heads: hidden_size % (2 * num_heads) == 0,
        "policy.hidden_size must be a multiple of 2 * policy.num_heads (rotary halves), got {hidden_size} with "
        "num_heads={num_heads}",
    ),
    Rule(
        lambda num_heads, num_kv_heads: num_heads % num_kv_heads == 0,
        "policy.num_kv_heads must divide policy.num_heads, got {num_kv_heads} with num_heads={num_heads}",
    ),
    Rule(
        lambda induction_heads, num_layers, num_heads, num_kv_heads: (
            not induction_heads or (num_layers >= 2 and num_heads == num_kv_heads)
        ),
        "policy.induction_heads=true needs two layers or more and policy.num_kv_heads={num_heads}, as many as num_heads, got "
        "num_layers={num_layers} and num_kv_heads={num_kv_heads}",
    ),
    Rule(
        lambda induction_heads, hidden_size, num_heads: (
            not induction_heads or (num_heads >= 2 and hidden_size % (4 * num_heads) == 0)
        ),
        "policy.induction_heads=true needs two heads or more and as policy.hidden_size a multiple of 4 * policy.num_heads, got "
        "{hidden_size} with num_heads={num_heads}",
    ),
)
@dataclass(frozen=True)
class FreshPolicy:
    """A small, randomly initialised Qwen2 policy with a byte-level BPE tokenizer that is trained on given texts.

    `induction_heads`: whether its first two layers begin with heads that look things up, see `induction`.
    """

    hidden_size: PositiveInt = 96
    num_layers: PositiveInt = 3
    num_heads: PositiveInt = 4
    num_kv_heads: PositiveInt = 2
    intermediate_size: PositiveInt = 256
    vocab_size: Annotated[int, Interval(ge=260), "room for 256 bytes and 2 special tokens"] = 512
    max_position_embeddings: PositiveInt = 2048
    seed: int = 0
    induction_heads: bool = False
    lora: None = field(default=None)

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
        if self.induction_heads:
            build_induction_heads(model, self.seed)
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
