"""Policies: fresh ones through export and back, pretrained ones by path, LoRA adapters and their merge."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.toy import gpt2
from transformers import AutoModelForCausalLM, AutoTokenizer

from oar_lightning.policy.fresh import FreshPolicy
from oar_lightning.policy.pretrained import ADAPTER, BUILT_IN, LoraSpec, Policy, PretrainedPolicy, export_policy


def count_parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


TEXTS = ["Ann has 12 pens. Ann buys 3.\n", "So we get 12+3=15 pens.\nThe answer is \\boxed{15}."] * 10
TINY = FreshPolicy(hidden_size=16, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=24, vocab_size=300)
SAMPLES = ["So 3+4 = 7.", "é 😀\n\n  ", "The answer is \\boxed{1,234}.", "Ann's  don't IT'S\t12345"]


@pytest.fixture(scope="module")
def tiny() -> Policy:
    return TINY.build(TEXTS)


@pytest.fixture(scope="module")
def folder(tiny: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "policy"
    export_policy(tiny.model, tiny.tokenizer, folder)
    return folder


def logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids).logits


def some_ids(policy: Policy) -> torch.Tensor:
    return torch.randint(2, len(policy.tokenizer), (3, 11), generator=torch.Generator().manual_seed(0))


def test_a_fresh_policy_comes_back_from_its_export(tiny: Policy, folder: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    for text in SAMPLES:
        ids = tiny.tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer(text, add_special_tokens=False).input_ids == ids
        assert tokenizer.decode(ids) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (tiny.tokenizer.eos_token_id, tiny.tokenizer.pad_token_id)
    torch.testing.assert_close(logits(model, some_ids(tiny)), logits(tiny.model, some_ids(tiny)), rtol=0, atol=0)
    assert list(folder.glob("*.safetensors"))
    assert not list(folder.glob("*.bin"))


def test_a_path_in_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert PretrainedPolicy(f"~/{folder.name}").load_tokenizer() is not None
    assert PretrainedPolicy("someone/model").location() == "someone/model"


def test_a_path_loads_like_any_hub_name(tiny: Policy, folder: Path) -> None:
    model, tokenizer = PretrainedPolicy(str(folder)).load()
    assert not model.training
    assert tokenizer.padding_side == "left"
    assert next(model.parameters()).dtype == torch.float32
    assert model.config._attn_implementation == "sdpa"
    torch.testing.assert_close(logits(model, some_ids(tiny)), logits(tiny.model, some_ids(tiny)), rtol=0, atol=0)
    other, _ = PretrainedPolicy(str(folder), dtype="bfloat16", attention="eager", gradient_checkpointing=True).load()
    assert next(other.parameters()).dtype == torch.bfloat16
    assert other.config._attn_implementation == "eager"
    assert other.is_gradient_checkpointing


def test_a_name_that_cannot_be_loaded_says_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for name, remedy in (
        ("no-such/policy", "cannot be found on the hub .* give the folder of a model"),
        (str(tmp_path / "missing"), "no such folder, and no hub id; correct the path"),
        (str(tmp_path), "holds no config.json; give a folder in Hugging Face format"),
        (str(tmp_path / "model"), "holds no tokenizer; save that of the model there"),
    ):
        with pytest.raises(ValueError, match=rf"policy\.name=.*{remedy}") as caught:
            PretrainedPolicy(name).load()
        assert name in str(caught.value)


@pytest.mark.parametrize("attention", ["flash_attention_2", "sdpaa"])
def test_an_attention_that_cannot_be_used_is_named_and_not_the_policy(folder: Path, attention: str) -> None:
    with pytest.raises(ValueError, match=rf"^policy\.attention={attention}: cannot be used .* set policy\.attention=sdpa$"):
        PretrainedPolicy(str(folder), attention=attention).load()


def test_modules_that_the_policy_does_not_have_are_named(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"^policy\.lora\.target_modules=\['no_such'\]: .*target_modules=all-linear$"):
        PretrainedPolicy(str(folder), lora=LoraSpec(target_modules=["no_such"])).load()


def test_damaged_weights_are_named(folder: Path, tmp_path: Path) -> None:
    """Half a copy, as a full disk leaves it; safetensors' error is of no usual class."""
    half = Path(shutil.copytree(folder, tmp_path / "half"))
    weights = (half / "model.safetensors").read_bytes()
    (half / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ValueError, match=r"policy\.name=.*half: cannot be loaded \(.*Give a local folder"):
        PretrainedPolicy(str(half)).load()


def test_built_in_names_lie_in_the_package() -> None:
    import oar_lightning

    package = Path(oar_lightning.__file__).parent
    assert [Path(PretrainedPolicy(name).location()) for name in BUILT_IN] == [package / "assets" / name for name in BUILT_IN]
    assert PretrainedPolicy("Qwen/Qwen2.5-0.5B").location() == "Qwen/Qwen2.5-0.5B"


def test_a_folder_with_a_built_in_name_is_not_taken_for_the_built_in_policy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "chain")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"policy\.name=chain is a policy of the package and a folder here; .*=\./chain"):
        PretrainedPolicy("chain").load()
    assert PretrainedPolicy("./chain").load_tokenizer() is not None
    assert PretrainedPolicy("graph").location() != "graph"


def test_a_folder_has_no_revision(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"policy\.revision=v2: .* is a folder, .*; leave the revision out"):
        PretrainedPolicy(str(folder), revision="v2").load()


def test_a_repositorys_own_code_is_not_run_unless_asked(folder: Path, tmp_path: Path) -> None:
    assert PretrainedPolicy("x").trust_remote_code is False
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    with pytest.raises(ValueError, match=r"policy\.name=.*code of its own, .*policy\.trust_remote_code=true"):
        PretrainedPolicy(str(tmp_path)).load()
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_without_padding_pads_with_eos_and_one_without_eos_is_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    loaded = PretrainedPolicy(str(tmp_path)).load_tokenizer()
    assert loaded.pad_token_id == loaded.eos_token_id
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"policy\.name=.*has no EOS token"):
        PretrainedPolicy(str(tmp_path)).load_tokenizer()


def test_lora_trains_adapters_only_and_exports_merged(tiny: Policy, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model, tokenizer = PretrainedPolicy(str(folder), lora=LoraSpec(r=4, alpha=8)).load()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert count_parameters(model) == count_parameters(tiny.model) + sum(p.numel() for p in trained.values())
    ids = some_ids(tiny)
    torch.testing.assert_close(logits(model, ids), logits(tiny.model, ids))

    model(input_ids=ids, labels=ids).loss.backward()
    assert all((p.grad is not None) == (name in trained) for name, p in model.named_parameters())
    for p in trained.values():
        torch.nn.init.normal_(p, std=0.3)
    changed = logits(model, ids)
    assert (changed - logits(tiny.model, ids)).abs().max() > 0.1

    export_policy(model, tokenizer, tmp_path / "merged")
    merged, _ = PretrainedPolicy(str(tmp_path / "merged")).load()
    assert count_parameters(merged) == count_parameters(tiny.model)
    torch.testing.assert_close(logits(merged, ids), changed, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits(model, ids), changed, rtol=0, atol=0)  # the one in training keeps its adapters
    assert sum(p.requires_grad for p in model.parameters()) == len(trained)


def test_adapters_name_the_revision_of_their_policy(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model, tokenizer = PretrainedPolicy(str(folder)).load()
    export_policy(LoraSpec(r=2).apply(model, "v2"), tokenizer, tmp_path)
    assert json.loads((tmp_path / ADAPTER / "adapter_config.json").read_text())["revision"] == "v2"


@pytest.mark.parametrize("lora", [None, LoraSpec(r=2, dropout=0.5)], ids=["whole", "lora"])
def test_a_policy_has_no_dropout_in_training_but_that_of_its_adapters(
    folder: Path, tmp_path: Path, lora: LoraSpec | None
) -> None:
    """Whatever its config says; GPT-2's says 0.1."""
    if lora:
        pytest.importorskip("peft")
    gpt2(vocab_size=300, dropout=0.1).float().save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["attn_pdrop"] == config["embd_pdrop"] == config["resid_pdrop"] == 0.1
    model = PretrainedPolicy(str(tmp_path), lora=lora).load().model
    ids = torch.randint(40, (3, 11), generator=torch.Generator().manual_seed(0))
    if lora:
        torch.nn.init.normal_(next(p for name, p in model.named_parameters() if "lora_B" in name))
    expected = logits(model, ids)
    assert torch.equal(logits(model.train(), ids), expected) == (lora is None)


def test_lora_with_gradient_checkpointing_still_has_gradients(tiny: Policy, folder: Path) -> None:
    pytest.importorskip("peft")
    model, _ = PretrainedPolicy(str(folder), lora=LoraSpec(r=2), gradient_checkpointing=True).load()
    ids = some_ids(tiny)
    model.train()
    model(input_ids=ids, labels=ids).loss.backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layer", ["embed_tokens", "lm_head"])
def test_an_adapter_on_one_of_two_tied_layers_is_refused(folder: Path, layer: str) -> None:
    """A merge would change the other layer, too: the exported policy would not be the trained one."""
    pytest.importorskip("peft")
    spec = PretrainedPolicy(str(folder), lora=LoraSpec(target_modules=["q_proj", layer]))
    with pytest.raises(ValueError, match=rf"policy\.lora\.target_modules adapts {layer}, which shares its weights"):
        spec.load()


def test_adapters_alone_are_refused(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    adapted = PretrainedPolicy(str(folder), lora=LoraSpec(r=2)).load()
    export_policy(adapted.model, adapted.tokenizer, tmp_path)
    adapted.tokenizer.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match=r"policy\.name=.*/adapter holds LoRA adapters alone; give the folder with the merged"):
        PretrainedPolicy(str(tmp_path / "adapter")).load()
    PretrainedPolicy(str(tmp_path)).load()


def test_a_pad_token_without_an_embedding_is_not_used(
    tiny: Policy, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny.model.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"pad_token": "<padding>"})
    tokenizer.save_pretrained(tmp_path)
    policy = PretrainedPolicy(str(tmp_path)).load()
    assert policy.tokenizer.pad_token_id == policy.tokenizer.eos_token_id < policy.model.config.vocab_size
    assert "its pad token; EOS serves as padding" in caplog.text
    tokenizer.add_special_tokens({"eos_token": "<the end>"})
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"EOS is token \d+, and the model has \d+; save both again after model\.resize"):
        PretrainedPolicy(str(tmp_path)).load()
