"""Policies: any Hugging Face causal LM, or a small fresh one with its own tokenizer."""

from __future__ import annotations

import importlib.resources
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

logger = logging.getLogger(__name__)

BUILT_IN = ("chain", "chain_asides", "chain_one_step")
"""Policies that ship in the package, usable as `policy.name`."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "auto": "auto"}


class Policy(NamedTuple):
    """A causal LM and its tokenizer; the tokenizer pads on the left and has a pad token."""

    model: Any
    tokenizer: Any


@dataclass(frozen=True)
class LoraSpec:
    """Low-rank adapters through `peft` (extra `lora`); the adapters are merged when the policy is exported."""

    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    target_modules: str | list[str] = "all-linear"

    def apply(self, model: Any) -> Any:
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError as error:
            raise ImportError("policy.lora needs the optional extra: pip install 'oar-lightning[lora]'") from error
        config = LoraConfig(
            task_type="CAUSAL_LM",
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=self.target_modules,
        )
        return get_peft_model(model, config)


@dataclass(frozen=True)
class PretrainedPolicy:
    """A Hugging Face causal LM by hub name, local path or built-in name.

    Args:
        name: hub id, local folder, or one of `BUILT_IN`.
        dtype: weights' dtype; `auto` takes the checkpoint's.
        attention: attention implementation (`sdpa`, `eager`, `flash_attention_2`, ...).
        gradient_checkpointing: recompute activations in the backward pass.
        trust_remote_code: run the repository's own model code. Off unless you say so.
        lora: adapters instead of full fine-tuning.
    """

    name: str
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    attention: str = "sdpa"
    gradient_checkpointing: bool = False
    trust_remote_code: bool = False
    lora: LoraSpec | None = None

    def location(self) -> str:
        """Where `from_pretrained` finds it: the package's own folder for a built-in name, else the name itself."""
        if self.name in BUILT_IN:
            return str(importlib.resources.files("oar_lightning") / "assets" / self.name)
        return self.name

    def load_tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        with helpful(self.name):
            tokenizer = AutoTokenizer.from_pretrained(
                self.location(), revision=self.revision, trust_remote_code=self.trust_remote_code
            )
        return _prepare_tokenizer(tokenizer, self.name)

    def load(self) -> Policy:
        """Load model and tokenizer; the model is in eval mode and its dropout, if any, stays off in scoring."""
        from transformers import AutoModelForCausalLM

        tokenizer = self.load_tokenizer()
        with helpful(self.name):
            model = AutoModelForCausalLM.from_pretrained(
                self.location(),
                revision=self.revision,
                dtype=DTYPES[self.dtype],
                attn_implementation=self.attention,
                trust_remote_code=self.trust_remote_code,
            )
        if self.lora is not None:
            model = self.lora.apply(model)
        if self.gradient_checkpointing:
            checkpoint_gradients(model, lora=self.lora is not None)
        return Policy(model.eval(), tokenizer)


def checkpoint_gradients(model: Any, lora: bool) -> None:
    """Keep the inputs of a model's layers only, and compute the rest again on the way back. With LoRA no weight before the
    first adapter requires a gradient, so the inputs have to."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if lora:
        model.enable_input_require_grads()


@dataclass(frozen=True)
class FreshPolicy:
    """A small randomly initialised Qwen2 policy with a byte-level BPE tokenizer trained on the given texts."""

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
    """A byte-level BPE tokenizer of Qwen2's kind (single digits, every text can be written) for `AutoTokenizer`.

    Qwen2's own splitting rules are not a choice: `AutoTokenizer` applies them to every Qwen2 model, whatever its
    tokenizer.json says, so that a tokenizer with other rules would read differently after saving and loading.
    """
    from transformers import Qwen2Tokenizer

    special = {"eos_token": "<|endoftext|>", "pad_token": "<|pad|>", "unk_token": None}
    blank = Qwen2Tokenizer(vocab={}, merges=[], **special)
    tokenizer = blank.train_new_from_iterator(texts, vocab_size, show_progress=False)
    tokenizer.padding_side = "left"
    return tokenizer


ADAPTER = "adapter"
"""In an exported policy's folder: the LoRA adapters alone, in `peft`'s format."""


def has_adapters(model: Any) -> bool:
    """Whether the model is one of `peft`'s."""
    return hasattr(model, "merge_and_unload")


def export_policy(model: Any, tokenizer: Any, folder: Path, state: dict[str, torch.Tensor] | None = None) -> None:
    """Save model and tokenizer in Hugging Face format (safetensors); LoRA adapters are merged into a copy, and saved by
    themselves in `ADAPTER`.

    `state`: the weights, where the model itself holds a part of them only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if has_adapters(model):
        import copy

        model.save_pretrained(folder / ADAPTER)
        model = copy.deepcopy(model).merge_and_unload()
    model.save_pretrained(folder, state_dict=state)
    tokenizer.save_pretrained(folder)


def leave_out_frozen(module: torch.nn.Module, checkpoint: dict[str, Any]) -> None:
    """Keep weights that are not trained, which a LoRA policy loads anyway, out of a checkpoint."""
    frozen = frozen_weights(module)
    checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if k not in frozen}


def fill_in_frozen(module: torch.nn.Module, checkpoint: dict[str, Any]) -> None:
    """The module's own in their place. (DeepSpeed keeps weights in files of its own, and has no state here.)"""
    if "state_dict" in checkpoint:
        checkpoint["state_dict"] = frozen_weights(module) | checkpoint["state_dict"]


def frozen_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Those that are not trained, under every name that they have."""
    return {name: p for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}


def _prepare_tokenizer(tokenizer: Any, name: str) -> Any:
    tokenizer.padding_side = "left"
    if tokenizer.eos_token_id is None:
        raise ValueError(f"policy.name={name}: its tokenizer has no EOS token; generation could never stop")
    if tokenizer.pad_token_id is None:
        logger.warning("%s has no pad token; EOS serves as padding (masks, not ids, decide what is padding)", name)
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


class helpful:
    """Turn a failed `from_pretrained` into an error that names the key and the remedy."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, OSError | ValueError):
            raise ValueError(
                f"policy.name={self.name}: cannot be loaded ({str(error).splitlines()[0]}). Give a local folder in "
                f"Hugging Face format, a hub id that can be reached or is cached, or a built-in name: {', '.join(BUILT_IN)}"
            ) from error
