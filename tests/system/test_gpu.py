"""Runs on a GPU: each method against the CPU, a resumed run, 16 bits, memory that runs out. Run by `make gpu`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.field_methods import METHODS, share_apart, trained
from support.limited_memory import train_limited

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
    pytest.mark.timeout(600),
]
GPU = ("trainer=gpu", "trainer.precision=32-true")
DIFFERS = 5e-3
"""How far the GPU's policy may be from the CPU's, as a share of what was learned."""
Record = Callable[[str, object], None]


@pytest.mark.parametrize("method", [*METHODS, "grpo"])
def test_a_gpu_ends_with_the_policy_of_the_cpu(method: str, tmp_path: Path, record_property: Record) -> None:
    settings = METHODS.get(method, (f"+experiment={method}",))
    trained(tmp_path, "here", *settings)
    trained(tmp_path, "there", *settings, *GPU)
    found = share_apart(tmp_path / "there_policy", tmp_path / "here_policy")
    record_property("share", found)
    assert found <= DIFFERS


@pytest.mark.parametrize("method", ["+experiment=oar_g", "+experiment=oar_p", "+experiment=prime"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_resumed_run_ends_with_the_policy_of_one_left_alone(
    method: str, precision: str, tmp_path: Path, record_property: Record
) -> None:
    settings = (method, "trainer=gpu", f"trainer.precision={precision}")
    trained(tmp_path, "whole", *settings)
    trained(tmp_path, "resumed", *settings, f"ckpt_path={tmp_path / 'whole' / 'checkpoints' / 'previous.ckpt'}")
    found = share_apart(tmp_path / "resumed_policy", tmp_path / "whole_policy")
    record_property("share", found)
    assert found <= DIFFERS


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_ends_with_the_policy_of_the_cpu(stage: int, tmp_path: Path, record_property: Record) -> None:
    """Under ZeRO-3, which moves weights, decoding steps are not recorded."""
    pytest.importorskip("deepspeed", reason="the extra deepspeed is not installed")
    trained(tmp_path, "here", "+experiment=oar_p")
    settings = (f"trainer=deepspeed_zero{stage}", "trainer.precision=32-true", "trainer.devices=1")
    trained(tmp_path, "there", "+experiment=oar_p", *settings)
    found = share_apart(tmp_path / "there_policy", tmp_path / "here_policy")
    record_property("share", found)
    assert found <= DIFFERS


def test_training_goes_on_where_a_cards_memory_runs_out(tmp_path: Path, record_property: Record) -> None:
    shown = {}
    for mib in (0, 200):
        done = train_limited(tmp_path, mib, "auto", "rollout.token_budget=auto", *GPU)
        assert done.returncode == 0, done.stdout + done.stderr
        shown[mib] = done.stdout + done.stderr
    lowered = {mib: re.findall(r"update.token_budget is lowered from .* for the rest", text) for mib, text in shown.items()}
    record_property("lowered", str(lowered))
    assert not lowered[0]
    assert lowered[200]
    assert share_apart(tmp_path / "policy200", tmp_path / "policy0") <= DIFFERS
