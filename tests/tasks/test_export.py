"""task=export: the policy of a checkpoint is the one that was saved; without DeepSpeed (see test_deepspeed_checkpoints.py)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from omegaconf import OmegaConf
from safetensors.torch import load_file
from support.composing import Prepare
from support.fixtures import built_in_policy, fit, make_module, tiny_policy, weights
from support.hub_server import Hub
from support.rank_worker import lora_policy
from transformers import AutoModelForCausalLM

from oar_lightning.common.config_check import ConfigError
from oar_lightning.distributed.deepspeed_checkpoint import Layout
from oar_lightning.tasks.export import export, prepare
from oar_lightning.training.callbacks import LastCheckpoint, RunIdentity
from oar_lightning.training.callbacks.checkpoint import LAST, PREVIOUS
from oar_lightning.wiring.resume import Saved, check_layout, read_saved
from oar_lightning.wiring.trained_weights import put_weights, read_weights


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Saved, dict[str, torch.Tensor]]:
    """A checkpoint, and the weights that it was made of."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    module = make_module(tiny_policy())
    fit(module, 2, [RunIdentity(lambda: None), LastCheckpoint(folder, 1)])
    return read_saved(folder / LAST), weights(module)


def test_the_exported_policy_is_the_checkpoint_s(trained: Any, tmp_path: Path) -> None:
    saved, expected = trained
    other = tiny_policy(seed=1)
    assert any((weight != expected[name]).any() for name, weight in weights_of(other.model).items())
    put_weights(other, saved)
    export(other, saved, tmp_path / "policy")
    found = weights_of(AutoModelForCausalLM.from_pretrained(tmp_path / "policy"))
    assert found.keys() == expected.keys()
    assert all(found[name].equal(weight) for name, weight in expected.items())


def test_a_checkpoint_of_adapters_is_exported_with_the_weights_that_they_adapt(tmp_path: Path) -> None:
    policy, folder = lora_policy(), tmp_path / "checkpoints"
    fit(make_module(policy, lr=1e-2), 2, [RunIdentity(lambda: None), LastCheckpoint(folder, 1)])
    other = lora_policy()
    put_weights(other, read_saved(folder / LAST))
    expected = weights_of(policy.model)
    assert any((weight != expected[name]).any() for name, weight in weights_of(lora_policy().model).items())
    assert all(weight.equal(expected[name]) for name, weight in weights_of(other.model).items())


def test_adapters_are_not_merged_into_another_policy_than_they_were_trained_on(
    prepared: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short = ["+experiment=smoke", "trainer.max_steps=1", "logger=none", "evaluation.heatmap=false", "policy=hf_lora"]
    prepared(*short, "policy.name=chain", "evaluation.problems=2", "rollout.max_new_tokens=40")()
    (run,) = (tmp_path / "outputs" / "smoke" / "seed0").iterdir()
    asked = [*short, "task=export", f"ckpt_path={run}", f"export_to={tmp_path / 'exported'}"]
    told = r"run0 keeps adapters alone, .*: {}: {} -> {}\. Give the old values"
    with pytest.raises(ConfigError, match=told.format(r"policy\.name", "chain", "chain_asides")):
        prepared(*asked, "policy.name=chain_asides")
    with pytest.raises(ConfigError, match=told.format(r"policy\.lora\.alpha", "32", "64")):
        prepared(*asked, "policy.name=chain", "policy.lora.alpha=64")
    assert not (tmp_path / "exported").exists()
    prepared(*asked, "policy.name=chain", "policy.dtype=bfloat16")  # the same weights, rounded
    prepared(*asked, "policy.name=chain", "policy.attention=eager", "policy.lora.dropout=0.0")()
    merged, own = (load_file(folder / "model.safetensors") for folder in (tmp_path / "exported", run / "policy"))
    assert merged.keys() == own.keys()
    assert all(weight.equal(own[name]) for name, weight in merged.items())
    (run / "artifacts" / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=r"run0: the weights of the policy are others"):
        prepared(*asked, "policy.name=chain_asides")
    (run / "artifacts" / "policy.json").unlink()
    prepared(*asked, "policy.name=chain_asides")
    assert "run0 keeps no config: whether its weights are of the policy given now is not known" in caplog.text


def test_weights_do_not_get_another_policys_config(prepared: Prepare, tmp_path: Path) -> None:
    """Those of `chain_asides` have the same shapes."""
    short = ["+experiment=smoke", "trainer.max_steps=1", "logger=none", "evaluation.heatmap=false"]
    prepared(*short, "evaluation.problems=2", "rollout.max_new_tokens=40")()
    (run,) = (tmp_path / "outputs" / "smoke" / "seed0").iterdir()
    told = r"run0 keeps weights, and the policy whose config they have was another one .*: policy\.name: chain -> chain_asides"
    with pytest.raises(ConfigError, match=told):
        prepared(*short, "task=export", f"ckpt_path={run}", "policy.name=chain_asides")


def test_a_policy_of_another_size_is_refused(trained: Any) -> None:
    with pytest.raises(ConfigError, match=r"its weights do not fit the policy .*give the policy=\.\.\. of the run, see"):
        put_weights(built_in_policy(), trained[0])


def test_a_checkpoint_that_was_replaced_since_it_was_found_is_refused(trained: Any) -> None:
    saved = trained[0]
    with pytest.raises(ConfigError, match=rf"was of step {saved.step + 1} and is of step {saved.step} now: its run goes on"):
        read_weights(dataclasses.replace(saved, step=saved.step + 1))


def test_a_checkpoint_must_be_given() -> None:
    with pytest.raises(ConfigError, match="task=export needs a checkpoint: give ckpt_path="):
        prepare(OmegaConf.create({"ckpt_path": None, "resume": False}))


def test_a_checkpoint_goes_on_with_the_strategy_that_wrote_it() -> None:
    plain, divided = Saved(Path("a"), 1, None), Saved(Path("b"), 1, None, Layout(3, 2))
    check_layout(plain, None)
    check_layout(divided, Layout(3, 2))
    with pytest.raises(ConfigError, match=r"cannot go on under DeepSpeed; resume with that .*task=export ckpt_path=a"):
        check_layout(plain, Layout(3, 2))
    for own in (None, Layout(3, 4), Layout(2, 2)):
        with pytest.raises(
            ConfigError, match=r"ZeRO stage 3 on 2 ranks, .* set trainer=deepspeed_zero3 .* to 2, .*task=export"
        ):
            check_layout(divided, own)


def test_a_checkpoint_that_is_a_folder_is_put_in_place_by_a_link(tmp_path: Path) -> None:
    callback = LastCheckpoint(tmp_path, 1)
    for step in (1, 2, 3):
        aside = tmp_path / ".last.ckpt.1"
        aside.mkdir()
        (aside / "part").write_text(str(step))
        callback._put_folder_in_place(aside, step)
        read = {name: (tmp_path / name / "part").read_text() for name in (LAST, PREVIOUS) if (tmp_path / name).exists()}
        assert read == {LAST: str(step)} | ({PREVIOUS: str(step - 1)} if step > 1 else {})
        assert len(list(tmp_path.iterdir())) == min(4, 2 * step), "and nothing else"


def test_a_run_s_policy_has_a_card_and_goes_to_the_hub(prepared: Prepare, hub: Hub, tmp_path: Path) -> None:
    short = ["+experiment=smoke", "trainer.max_steps=1", "logger=none", "evaluation.heatmap=false"]
    prepared(*short)()
    (run,) = (tmp_path / "outputs" / "smoke" / "seed0").iterdir()
    own = (run / "policy" / "README.md").read_text(encoding="utf-8")
    recorded = torch.load(run / "checkpoints" / LAST, weights_only=True)["callbacks"]["EvaluationCallback"]["history"]
    values = {r.metric_name: r.metric_value for r in ModelCard(own).data.eval_results}
    assert values["greedy"] == pytest.approx(recorded[-1]["metrics"]["greedy"])
    assert values["avg_at_2"] == pytest.approx(recorded[-1]["metrics"]["avg_at_2"], abs=1e-4)
    assert "| evaluation: chain | generated by ChainProblems | 8 |" in own
    assert "The policy after optimizer step 1 of reinforcement learning" in own

    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "diary.txt").write_text("mine")
    asked = [*short, "task=export", f"ckpt_path={run}", f"export_to={exported}", "push_to_hub=ann/policy"]
    prepared(*asked)()
    assert (exported / "README.md").read_text(encoding="utf-8") == own, "the same facts, from the checkpoint"
    files = hub.files["ann/policy"]
    assert files == {path.name: path.read_bytes() for path in exported.iterdir() if path.name != "diary.txt"}
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    assert hub.private == {"ann/policy": True}

    with pytest.raises(ValueError, match=r"push_to_hub=policy: it has no owner; give <owner>/policy"):
        prepared(*asked[:-1], "push_to_hub=policy")
    hub.refused.add("POST /api/models/ann/policy/commit")
    work = prepared(*asked)
    with pytest.raises(SystemExit, match="1"):
        work()


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach() for name, weight in model.named_parameters()}
