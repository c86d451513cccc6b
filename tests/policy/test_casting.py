"""A policy that is cast is the one that its saved weights are, loaded in that precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch.plugins import HalfPrecision
from lightning.pytorch.plugins.precision import DeepSpeedPrecision
from torch import Tensor
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, Qwen2Config, Qwen2ForCausalLM

from oar_lightning.policy.casting import cast
from oar_lightning.policy.pretrained import Policy
from oar_lightning.training.policy_module import PolicyModule
from oar_lightning.training.schedule import Schedule

SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1}


def qwen2() -> Qwen2ForCausalLM:
    """Heads of 64 numbers: their frequencies are no powers of two, which bfloat16 would hold."""
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, num_key_value_heads=1, max_position_embeddings=2048, initializer_range=0.2))


def gemma3() -> Gemma3ForCausalLM:
    """It has two kinds of layers with frequencies of their own, and a number that scales embeddings as a buffer."""
    return Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, num_key_value_heads=1, head_dim=64, max_position_embeddings=2048))


@torch.no_grad()
def logits(model: torch.nn.Module) -> Tensor:
    ids = torch.randint(0, 64, (1, 600), generator=torch.Generator().manual_seed(3))
    found: Tensor = model.eval()(ids).logits
    return found


@pytest.mark.parametrize("make", [qwen2, gemma3])
def test_a_cast_policy_is_its_saved_one_loaded_in_that_precision(make, tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert cast(model, torch.device("cpu"), torch.bfloat16) is model
    own, theirs = (dict(m.named_buffers()) for m in (model, loaded))
    frequencies = [name for name in theirs if name.endswith("inv_freq")]
    assert frequencies
    assert {own[name].dtype for name in frequencies} == {torch.float32}
    assert all(torch.equal(own[name], theirs[name]) for name in frequencies)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.equal(logits(model), logits(loaded))
    rounded = make().to(torch.bfloat16)
    rounded.load_state_dict(model.state_dict())
    assert not torch.equal(logits(rounded), logits(loaded)), "what a plain cast is"


@pytest.mark.parametrize("plugin", [HalfPrecision("bf16-true"), HalfPrecision("16-true"), DeepSpeedPrecision("bf16-true")])
def test_lightnings_precisions_cast_training_modules_so(plugin) -> None:
    model = qwen2()
    frequencies = model.model.rotary_emb.inv_freq.clone()
    module = PolicyModule(Policy(model, None), torch.optim.AdamW, Schedule())
    assert plugin.convert_module(module) is module
    assert {p.dtype for p in model.parameters()} == {torch.float16 if plugin.precision == "16-true" else torch.bfloat16}
    assert torch.equal(model.model.rotary_emb.inv_freq, frequencies)
    assert module.dtype == next(model.parameters()).dtype
    assert {b.device.type for b in module.to("meta").buffers()} == {"meta"}, "a device is no precision"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_deepspeeds_that_cast_all_of_a_module_do_so_too(dtype: torch.dtype) -> None:
    """Before 0.19.2 its engine calls these methods."""
    model = qwen2()
    frequencies = model.model.rotary_emb.inv_freq.clone()
    module = PolicyModule(Policy(model, None), torch.optim.AdamW, Schedule())
    assert (module.half() if dtype == torch.float16 else module.bfloat16()) is module
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert torch.equal(model.model.rotary_emb.inv_freq, frequencies)
