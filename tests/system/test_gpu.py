"""Runs on a GPU: each method against the CPU, a resumed run, 16 bits, memory that runs out. Run by `make gpu`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
import torch
from support.field_methods import METHODS, distance, policy, trained

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
    pytest.mark.timeout(600),
]
GPU = ("trainer=gpu", "trainer.precision=32-true")
DIFFERS = 5e-3
"""How far the GPU's policy may be from the CPU's, as a share of what was learned."""
Record = Callable[[str, object], None]


def share(one: Path, other: Path) -> float:
    """How far two policies are apart, as a share of what the second has learned."""
    begun = policy(Path(str(resources.files("oar_lightning") / "assets" / "chain")))
    return distance(policy(one), policy(other)) / distance(policy(other), begun)


@pytest.mark.parametrize("method", METHODS)
def test_a_gpu_ends_with_the_policy_of_the_cpu(method: str, tmp_path: Path, record_property: Record) -> None:
    trained(tmp_path, "here", *METHODS[method])
    trained(tmp_path, "there", *METHODS[method], *GPU)
    found = share(tmp_path / "there_policy", tmp_path / "here_policy")
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
    found = share(tmp_path / "resumed_policy", tmp_path / "whole_policy")
    record_property("share", found)
    assert found <= DIFFERS


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_ends_with_the_policy_of_the_cpu(stage: int, tmp_path: Path, record_property: Record) -> None:
    """Under ZeRO-3, which moves weights, decoding steps are not recorded."""
    pytest.importorskip("deepspeed", reason="the extra deepspeed is not installed")
    trained(tmp_path, "here", "+experiment=oar_p")
    settings = (f"trainer=deepspeed_zero{stage}", "trainer.precision=32-true", "trainer.devices=1")
    trained(tmp_path, "there", "+experiment=oar_p", *settings)
    found = share(tmp_path / "there_policy", tmp_path / "here_policy")
    record_property("share", found)
    assert found <= DIFFERS


LIMITED = r"""
    import torch
    from oar_lightning.credit.scorers import Uniform


    class Limited(Uniform):
        # From the first scoring on, which precedes the first update, torch may hold so many MiB more; 0: any

        def __init__(self, mib: int) -> None:
            super().__init__()
            self.mib = mib

        def __call__(self, model, rollouts):
            if self.mib:
                torch.cuda.empty_cache()
                size = torch.cuda.memory_reserved() + self.mib * 2**20
                torch.cuda.set_per_process_memory_fraction(size / torch.cuda.get_device_properties(0).total_memory)
                self.mib = 0
            return super().__call__(model, rollouts)
"""


def test_training_goes_on_where_a_cards_memory_runs_out(tmp_path: Path, record_property: Record) -> None:
    (tmp_path / "limited.py").write_text(textwrap.dedent(LIMITED))
    shown = {}
    for mib in (0, 200):
        overrides = [
            *("+experiment=smoke", *GPU, "logger=none", "trainer.max_steps=2", "evaluation.problems=1"),
            *("update.problems=16", "update.group_size=8", "update.microbatches=1", "update.token_budget=auto"),
            "rollout.token_budget=auto",
            *("~scorer", f"+scorer={{_target_: limited.Limited, mib: {mib}}}", "evaluation.heatmap=false"),
            f"export_to=policy{mib}",
        ]
        command = [sys.executable, "-m", "oar_lightning", *overrides]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        shown[mib] = done.stdout + done.stderr
    lowered = {mib: re.findall(r"update.token_budget is lowered from .* for the rest", text) for mib, text in shown.items()}
    record_property("lowered", str(lowered))
    assert not lowered[0]
    assert lowered[200]
    assert share(tmp_path / "policy200", tmp_path / "policy0") <= DIFFERS
