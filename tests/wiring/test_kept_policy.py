"""A policy's folder that is written anew between two starts of a run: the run goes on with the same policy, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.composing import Prepare
from support.fixtures import built_in_policy
from support.killed import killed

from oar_lightning.common.config_check import ConfigError
from oar_lightning.policy.pretrained import export_policy
from oar_lightning.tasks import train

SMALL = (
    "+experiment=smoke",
    "logger=none",
    "evaluation.problems=2",
    "evaluation.greedy=false",
    "evaluation.heatmap=false",
    "rollout.max_new_tokens=40",
    "trainer.max_steps=1",
)


def write(folder: Path, factor: float = 1.0, template: str | None = None) -> None:
    model, tokenizer = built_in_policy()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(factor)
    tokenizer.chat_template = template or tokenizer.chat_template
    export_policy(model, tokenizer, folder)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (("policy=hf_lora",), "the weights of the"),
        (("policy=hf", "loss.kl_coef=0.1"), "the reference of the"),
        (("policy=hf",), None),
    ],
)
def test_weights_that_the_run_needs_and_does_not_keep(
    settings: tuple[str, ...], told: str | None, prepared: Prepare, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    write(start)
    given = (*SMALL, *settings, f"policy.name={start}")
    killed(lambda: prepared(*given, folder="run0"), train, "report")  # which comes when all is done
    run = tmp_path / "outputs" / "smoke" / "seed0" / "run0"
    more = (*given, f"ckpt_path={run}", "trainer.max_steps=2")
    export = (*given, "task=export", f"ckpt_path={run}", f"export_to={tmp_path / 'exported'}")
    write(start, 1.5)
    if told is None:
        prepared(*more)()  # the checkpoint has all weights
        return
    with pytest.raises(ConfigError, match=rf"run0: {told} policy are others than those that the run began with"):
        prepared(*more)
    if "hf_lora" in settings[0]:
        with pytest.raises(ConfigError, match=told):
            prepared(*export)
    write(start)
    killed(lambda: prepared(*more), train, "report")
    (run / "artifacts" / "policy.json").unlink()
    write(start, 1.5)
    prepared(*export)  # of a run from before it kept them


def test_another_chat_template_is_another_policy(prepared: Prepare, tmp_path: Path) -> None:
    start = tmp_path / "start"
    write(start)
    given = (*SMALL, "policy=hf", f"policy.name={start}")
    killed(lambda: prepared(*given, folder="run0"), train, "report")
    write(start, template="{% for message in messages %}{{ message.content }} {% endfor %}")
    with pytest.raises(ConfigError, match=r"the tokenizer of the policy are others .* Bring it back"):
        prepared(*given, f"ckpt_path={tmp_path / 'outputs' / 'smoke' / 'seed0' / 'run0'}", "trainer.max_steps=2")
