"""A policy of a task without a Trainer has the weights that a Trainer would give it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.composing import composed

from oar_lightning.common.config_check import ConfigError
from oar_lightning.policy.casting import precision_name
from oar_lightning.policy.pretrained import ADAPTER, LoraSpec, PretrainedPolicy, export_policy
from oar_lightning.wiring.device import mixed_precision
from oar_lightning.wiring.policy import bare_policy, load_policy

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("precision", "weights", "products"),
    [
        (None, torch.float32, torch.float32),
        ("32-true", torch.float32, torch.float32),
        ("bf16-true", torch.bfloat16, torch.bfloat16),
        ("64-true", torch.float64, torch.float64),
        ("bf16-mixed", torch.float32, torch.bfloat16),
        ("bf16", torch.float32, torch.bfloat16),
    ],
)
def test_weights_and_passes_are_in_the_trainers_precision(precision, weights: torch.dtype, products: torch.dtype) -> None:
    policy = load_policy(PretrainedPolicy("chain"), "evaluate", CPU, precision)
    assert {p.dtype for p in policy.model.parameters()} == {weights}
    assert {b.dtype for b in policy.model.buffers()} == {torch.float32}, "frequencies of rotary positions"
    assert not any(p.requires_grad for p in policy.model.parameters())
    with mixed_precision(precision, CPU):
        weight = policy.model.lm_head.weight
        assert (weight @ weight.T).dtype == products


def test_modules_that_a_config_lists_are_adapted_and_exported(hydra_conf: None, tmp_path: Path) -> None:
    """Hydra's list is none of Python's, which alone peft can write."""
    pytest.importorskip("peft")
    policy = bare_policy(composed("policy=hf_lora", "policy.name=chain", "policy.lora.target_modules=[q_proj,v_proj]"))
    export_policy(policy.model, policy.tokenizer, tmp_path)
    written = json.loads((tmp_path / ADAPTER / "adapter_config.json").read_text())
    assert sorted(written["target_modules"]) == ["q_proj", "v_proj"]


@pytest.mark.parametrize(("adapters", "trains"), [("none", ".embed_tokens."), ("lora", ".lora_A.")])
def test_what_training_moves_may_be_kept_trainable(adapters: str, trains: str) -> None:
    if adapters == "lora":
        pytest.importorskip("peft")
    spec = PretrainedPolicy("chain", lora=LoraSpec() if adapters == "lora" else None)
    policy = load_policy(spec, "benchmark", CPU, trained=True)
    moved = {name: p.requires_grad for name, p in policy.model.named_parameters()}
    assert any(found for name, found in moved.items() if trains in name)
    assert all(moved.values()) == (adapters == "none")


def test_a_precision_that_only_a_trainer_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.precision=transformer-engine needs a Trainer, .*task=score.* bf16-true"):
        load_policy(PretrainedPolicy("chain"), "score", CPU, "transformer-engine")


def test_names_are_those_that_lightning_makes_of_them() -> None:
    from lightning.fabric.plugins.precision import precision as lightnings

    for alias, name in lightnings._PRECISION_INPUT_STR_ALIAS_CONVERSION.items():
        assert precision_name(alias) == name
    assert precision_name(16) == "16-mixed"
