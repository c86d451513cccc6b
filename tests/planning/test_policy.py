"""Policies without weights: their counts and their passes' peaks are those of the true ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MixtralConfig, Qwen2Config

from oar_lightning.planning import dry_run
from oar_lightning.planning.empty import no_memory
from oar_lightning.planning.policy import policy_size, policy_without_weights
from oar_lightning.policy.language_model import turn_dropout_off
from oar_lightning.policy.pretrained import LoraSpec, PretrainedPolicy
from oar_lightning.rollout.sampling import SamplingConfig

SMALL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIGS = {
    "qwen2_tied": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen2_untied": Qwen2Config(**SMALL, tie_word_embeddings=False),
    "llama_tied": LlamaConfig(**SMALL, tie_word_embeddings=True),
    "llama_untied": LlamaConfig(**SMALL, tie_word_embeddings=False),
    "llama_dropout": LlamaConfig(**SMALL, attention_dropout=0.1),
    "mixtral": MixtralConfig(**SMALL, num_local_experts=4),
    "gpt2": GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1),
    "gpt2_untied": GPT2Config(
        vocab_size=300, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1, tie_word_embeddings=False
    ),
}


def only_config(config: Any, folder: Path) -> PretrainedPolicy:
    config.save_pretrained(folder)
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    return PretrainedPolicy(str(folder))


@pytest.mark.parametrize("lora", [None, LoraSpec(r=4)], ids=["full", "lora"])
@pytest.mark.parametrize("name", CONFIGS)
def test_counts_are_those_of_the_model(name: str, lora: LoraSpec | None, tmp_path: Path) -> None:
    spec = replace(only_config(CONFIGS[name], tmp_path), lora=lora)
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    model = model if lora is None else lora.apply(model)
    with no_memory():
        size = policy_size(policy_without_weights(spec))
    assert size.trained == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert size.frozen == sum(p.numel() for p in model.parameters() if not p.requires_grad)
    assert size.bytes == 4 * size.parameters
    assert bool(size.frozen) == (lora is not None)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        ({"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4}, 7_615_616_512),
        ({"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2}, 1_543_714_304),
    ],
    ids=["Qwen2.5-7B", "Qwen2.5-1.5B"],
)
def test_counts_of_large_models_are_the_published_ones(config: dict[str, int], parameters: int, tmp_path: Path) -> None:
    """They would take 30 GB; the counts are those that the model cards' safetensors say."""
    large = config["hidden_size"] == 3584
    shape = config | {"num_hidden_layers": 28, "vocab_size": 152064 if large else 151936, "tie_word_embeddings": not large}
    (tmp_path / "config.json").write_text(json.dumps(shape | {"model_type": "qwen2"}))
    with no_memory():
        size = policy_size(policy_without_weights(PretrainedPolicy(str(tmp_path), dtype="bfloat16")))
    assert (size.parameters, size.bytes) == (parameters, 2 * parameters)


@pytest.mark.parametrize(
    ("name", "checkpointing"),
    [(name, on) for name in ("qwen2_tied", "llama_untied", "gpt2") for on in (False, True)]
    + [("llama_dropout", False), ("mixtral", False)],
)
def test_peaks_are_those_of_true_passes(
    name: str, checkpointing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSFORMERS_SDPA_FORCE_GQA", "1")
    spec = replace(only_config(CONFIGS[name], tmp_path), gradient_checkpointing=checkpointing)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="sdpa")
    turn_dropout_off(model)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    texts = dry_run.completions(4, 2, 32, 64)
    passes: list[Any] = [
        lambda m: dry_run.update_bytes(m, texts),
        lambda m: dry_run.logprobs_bytes(m, texts),
        lambda m: dry_run.generation_bytes(m, texts, SamplingConfig(64), True),
    ]
    with no_memory():
        empty = policy_without_weights(spec)
    assert [run(empty) for run in passes] == pytest.approx([run(model) for run in passes], rel=0.02)


def test_checkpointing_saves_memory_and_half_precision_does(tmp_path: Path) -> None:
    spec = only_config(CONFIGS["qwen2_tied"], tmp_path)
    texts = dry_run.completions(8, 2, 32, 96)
    with no_memory():
        policy, half = policy_without_weights(spec), policy_without_weights(spec, torch.bfloat16)
        recomputing = policy_without_weights(replace(spec, gradient_checkpointing=True))
    whole = dry_run.update_bytes(policy, texts)
    assert dry_run.update_bytes(recomputing, texts) < 0.6 * whole
    assert dry_run.update_bytes(policy, texts, torch.bfloat16) < whole
    assert dry_run.update_bytes(half, texts) < 0.8 * whole  # logits are float32 all the same
    generation = [dry_run.generation_bytes(m, texts, SamplingConfig(96), False) for m in (policy, half)]
    assert generation[1] < 0.8 * generation[0]


def test_a_generation_holds_its_cache(tmp_path: Path) -> None:
    """Keys and values of all columns, in 2 layers of 2 groups of 8 numbers, and the keys of one layer again as it grows."""
    with no_memory():
        policy = policy_without_weights(only_config(CONFIGS["qwen2_tied"], tmp_path))
    of_token = 2 * 2 * 8 * 4

    def generation(rows: int, prompt: int, own: int) -> int:
        return dry_run.generation_bytes(policy, dry_run.completions(rows, 2, prompt, own), SamplingConfig(own), False)

    grown = generation(8, 64, 512) - generation(8, 64, 256)
    assert grown == pytest.approx(8 * 256 * of_token * (2 + 0.5), rel=0.05)
