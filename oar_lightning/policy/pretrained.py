"""Pretrained policies: any Hugging Face causal LM, with or without LoRA; loading and export."""

from __future__ import annotations

import contextlib
import importlib.resources
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch

from oar_lightning.common.messages import first_line
from oar_lightning.common.ranges import PositiveInt, ProperFraction, checked
from oar_lightning.policy.language_model import turn_dropout_off
from oar_lightning.policy.location import adapters_alone, check_location
from oar_lightning.policy.out_of_memory import out_of_memory

logger = logging.getLogger(__name__)

BUILT_IN = ("chain", "chain_asides", "chain_long_answer", "chain_one_step", "graph", "graph_hints")
"""Policies that ship in the package, usable as `policy.name`."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "auto": "auto"}


class Policy(NamedTuple):
    """A causal LM and its tokenizer; the tokenizer pads on the left and has a pad token."""

    model: Any
    tokenizer: Any


@checked("policy.lora")
@dataclass(frozen=True)
class LoraSpec:
    """Low-rank adapters of `peft` (extra `lora`), which are merged when the policy is exported.

    Args:
        dropout: of the adapters' inputs while the loss is computed. Old and reference log-probabilities are without it, so that
            its noise is in the ratios where a batch is used in several steps, and in the KL term.
    """

    r: PositiveInt = 16
    alpha: PositiveInt = 32
    dropout: ProperFraction = 0.0
    target_modules: str | list[str] = "all-linear"

    def apply(self, model: Any, revision: str | None = None) -> Any:
        """The model with adapters, which name the revision of its weights."""
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError as error:
            raise ImportError("policy.lora needs the optional extra: pip install -e '.[lora]'") from error
        config = LoraConfig(
            task_type="CAUSAL_LM",
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            # a config's list is none that peft can write
            target_modules=self.target_modules if isinstance(self.target_modules, str) else list(self.target_modules),
        )
        try:
            adapted = get_peft_model(model, config, revision=revision)
        except ValueError as error:
            raise ValueError(
                f"policy.lora.target_modules={self.target_modules}: {first_line(error).rstrip('.')}. Name linear layers of the "
                "policy, or set policy.lora.target_modules=all-linear"
            ) from error
        refuse_tied(adapted)
        return adapted


def refuse_tied(model: Any) -> None:
    """Raises ValueError: for an adapter on one of two tied layers, since an export would merge it into both."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for tied in names.values():
        if adapted := [name for name in tied if len(tied) > 1 and ".base_layer." in name]:
            layer = adapted[0].partition(".base_layer.")[0].rpartition(".")[2]
            raise ValueError(
                f"policy.lora.target_modules adapts {layer}, which shares its weights with another layer; leave it out, e.g. "
                "policy.lora.target_modules=all-linear"
            )


@checked("policy")
@dataclass(frozen=True)
class PretrainedPolicy:
    """A Hugging Face causal LM by hub name, local path or built-in name.

    Args:
        name: hub id, local folder, or one of `BUILT_IN`.
        dtype: weights' dtype; `auto` takes the checkpoint's.
        attention: attention implementation (`sdpa`, `eager`, `flash_attention_2`, ...).
        gradient_checkpointing: recompute activations in the backward pass.
        trust_remote_code: run the repository's own model code.
        lora: adapters instead of full fine-tuning.
    """

    name: str
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    attention: str = "sdpa"
    gradient_checkpointing: bool = False
    trust_remote_code: bool = False
    lora: LoraSpec | None = None

    key: ClassVar[str] = "policy"
    """Of the config; messages name it."""

    def location(self) -> str:
        """The argument of `from_pretrained`: the package's own folder for a built-in name, else the name itself.

        Raises:
            ValueError: for a built-in name that is a model's folder here, too.
        """
        if self.name in BUILT_IN:
            if (Path(self.name) / "config.json").is_file():
                raise ValueError(
                    f"{self.key}.name={self.name} is a policy of the package and a folder here; write "
                    f"{self.key}.name=./{self.name} for the folder, or give the folder another name"
                )
            return str(importlib.resources.files("oar_lightning") / "assets" / self.name)
        folder = Path(self.name).expanduser()
        return str(folder) if folder.is_dir() else self.name

    def load_tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        check_location(self.location(), self.revision, key=self.key)
        with explained_load_errors(self.name, self.key):
            tokenizer = AutoTokenizer.from_pretrained(
                self.location(), revision=self.revision, trust_remote_code=self.trust_remote_code
            )
        return _prepare_tokenizer(tokenizer, f"{self.key}.name={self.name}")

    def load(self) -> Policy:
        """Load model and tokenizer; the model is in eval mode, and has no dropout in training but that of `lora`."""
        from transformers import AutoModelForCausalLM

        tokenizer = self.load_tokenizer()
        with explained_load_errors(self.name, self.key, self.attention):
            model = AutoModelForCausalLM.from_pretrained(
                self.location(),
                revision=self.revision,
                dtype=DTYPES[self.dtype],
                attn_implementation=self.attention,
                trust_remote_code=self.trust_remote_code,
            )
        if getattr(model, "_hf_peft_config_loaded", False):
            raise ValueError(adapters_alone(f"{self.key}.name={self.name}"))
        fit_vocabulary(tokenizer, model.config.get_text_config().vocab_size, f"{self.key}.name={self.name}")
        turn_dropout_off(model)
        if self.lora is not None:
            model = self.lora.apply(model, self.revision)
        if self.gradient_checkpointing:
            checkpoint_gradients(model, lora=self.lora is not None)
        return Policy(model.eval(), tokenizer)


def checkpoint_gradients(model: Any, lora: bool) -> None:
    """Keep only the inputs of a model's layers, and recompute the rest in the backward pass.

    With LoRA no weight before the first adapter requires a gradient, so the inputs must require one.
    """
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if lora:
        model.enable_input_require_grads()


ADAPTER = "adapter"
"""The folder of the LoRA adapters alone, in `peft`'s format, inside an exported policy's folder."""


def has_adapters(model: Any) -> bool:
    """Whether the model is one of `peft`'s."""
    return hasattr(model, "merge_and_unload")


def export_policy(model: Any, tokenizer: Any, folder: str | Path, state: dict[str, torch.Tensor] | None = None) -> None:
    """Save model and tokenizer in Hugging Face format (safetensors). LoRA adapters are merged into a copy of the model, and
    also saved by themselves in `ADAPTER`.

    `state`: the whole weights, where the model itself holds only a part of them.
    """
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    if has_adapters(model):
        import copy

        model.save_pretrained(folder / ADAPTER)
        model = copy.deepcopy(model).merge_and_unload()
    model.save_pretrained(folder, state_dict=state)
    tokenizer.save_pretrained(folder)


def _prepare_tokenizer(tokenizer: Any, setting: str) -> Any:
    tokenizer.padding_side = "left"
    if tokenizer.eos_token_id is None:
        raise ValueError(f"{setting}: its tokenizer has no EOS token; generation could never stop")
    if tokenizer.pad_token_id is None:
        logger.warning("%s: no pad token; EOS serves as padding (masks, not ids, decide what is padding)", setting)
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def fit_vocabulary(tokenizer: Any, size: int, setting: str) -> None:
    """Let EOS serve as padding where the policy has no embedding of the pad token.

    Raises:
        ValueError: where it has none of EOS either.
    """
    if tokenizer.eos_token_id >= size:
        raise ValueError(
            f"{setting}: its tokenizer's EOS is token {tokenizer.eos_token_id}, and the model has {size}; save both again "
            "after model.resize_token_embeddings(len(tokenizer))"
        )
    if tokenizer.pad_token_id >= size:
        logger.warning("%s: the model has no token %d, its pad token; EOS serves as padding", setting, tokenizer.pad_token_id)
        tokenizer.pad_token = tokenizer.eos_token


@contextlib.contextmanager
def explained_load_errors(name: str, key: str = "policy", attention: str = "sdpa") -> Iterator[None]:
    """Turn a failed `from_pretrained` in a block into an error that names the key and the remedy."""
    try:
        yield
    except Exception as error:  # of damaged weights safetensors and torch have classes of their own
        if out_of_memory(error):
            raise
        if any(word in str(error) for word in ("attn_implementation", "FlashAttention", "`kernels`")):
            raise ValueError(
                f"{key}.attention={attention}: cannot be used ({first_line(error)}); install what it needs, or set "
                f"{key}.attention=sdpa"
            ) from error
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"{key}.name={name}: holds code of its own, which runs only with {key}.trust_remote_code=true; read it before"
            ) from error
        raise ValueError(
            f"{key}.name={name}: cannot be loaded ({first_line(error)}). Give a local folder in "
            f"Hugging Face format, a hub id that can be reached or is cached, or a built-in name: {', '.join(BUILT_IN)}"
        ) from error
