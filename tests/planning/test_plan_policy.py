"""Policies without weights: their counts and their passes' peaks are those of the true ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config

from oar_lightning.planning import dry_run
from oar_lightning.planning.policy import no_memory, policy_size, policy_without_weights
from oar_lightning.policy import LoraSpec, PretrainedPolicy

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


@pytest.mark.parametrize("name", ["qwen2_tied", "llama_untied", "gpt2"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_peaks_are_those_of_true_passes(
    name: str, checkpointing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSFORMERS_SDPA_FORCE_GQA", "1")
    spec = replace(only_config(CONFIGS[name], tmp_path), gradient_checkpointing=checkpointing)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="sdpa")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.config.attn_pdrop = 0.0
    if name == "gpt2":
        for block in model.transformer.h:
            block.attn.config.attn_pdrop = 0.0
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    passes: list[Any] = [
        lambda m: dry_run.update_bytes(m, 4, 96),
        lambda m: dry_run.logprobs_bytes(m, 4, 96),
        lambda m: dry_run.forward_bytes(m, 4, 96),
        lambda m: dry_run.gradient_bytes(m, 4, 96, 3),
        dry_run.cache_bytes,
    ]
    with no_memory():
        planned = [run(policy_without_weights(spec)) for run in passes]
    assert planned == pytest.approx([run(model) for run in passes], rel=0.02)


def test_checkpointing_saves_memory_and_half_precision_does(tmp_path: Path) -> None:
    spec = only_config(CONFIGS["qwen2_tied"], tmp_path)
    with no_memory():
        whole = dry_run.update_bytes(policy_without_weights(spec), 8, 128)
        recomputed = dry_run.update_bytes(policy_without_weights(replace(spec, gradient_checkpointing=True)), 8, 128)
        half = dry_run.cache_bytes(policy_without_weights(spec, torch.bfloat16))
        mixed = dry_run.update_bytes(policy_without_weights(spec), 8, 128, torch.bfloat16)
    assert recomputed < 0.6 * whole
    assert mixed < whole
    assert half == 2 * 2 * 2 * 2 * 8  # keys and values, layers, groups, head size, bytes


def test_live_bytes_are_what_is_alive() -> None:
    with dry_run.LiveBytes() as count:
        a = torch.zeros(1000)
        b = a + 1  # 8000 alive
        del a
        c = b[:500].view(5, 100)  # a view holds nothing new
        d = torch.zeros(500)
        assert count.live == 6000
        del b
        assert count.live == 6000
        del c
    assert (count.live, count.peak) == (2000, 8000)
    assert d.nbytes == 2000
