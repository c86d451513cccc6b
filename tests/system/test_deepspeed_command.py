"""DeepSpeed from the command line, two processes on the CPU: a run, its checkpoint, its policy, and its faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient
from transformers import AutoModelForCausalLM

from oar_lightning.distributed.rank_launcher import GRACE_S
from oar_lightning.tracking.history import metric_history

pytest.importorskip("deepspeed", reason="the extra deepspeed is not installed", exc_type=ImportError)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SMALL = "num_threads=1 update.problems=4 update.group_size=4 rollout.max_new_tokens=40"
EVALUATION = "evaluation.problems=2 evaluation.greedy=false"
TWO = "trainer.accelerator=cpu trainer.devices=2 trainer.precision=32-true"


def reward(function: str) -> str:
    term = "+reward.terms.accuracy."
    target = f"{term}_target_=oar_lightning.answers.reward.FunctionReward"
    return f"~reward.terms.accuracy {target} {term}path=support.failing_rank.{function}"


def run(folder: Path, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    settings = " ".join([SMALL, EVALUATION, *overrides]).split()
    return subprocess.run(
        [sys.executable, "-m", "oar_lightning", *settings],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
    )


def succeed(folder: Path, *overrides: str) -> str:
    done = run(folder, *overrides)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
    return done.stdout + done.stderr


def losses(store: str) -> dict[int, float]:
    """Of the newest run: step -> loss."""
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("oar_lightning")
    assert experiment is not None
    newest = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"])[0]
    return {point.step: point.value for point in metric_history(client, newest.info.run_id, "loss")}


@pytest.mark.parametrize(("experiment", "trainer"), [("oar_g", "deepspeed_zero3"), ("oar_p", "deepspeed_zero2_offload")])
def test_a_run_its_resumption_and_its_policy(experiment: str, trainer: str, store: str, tmp_path: Path) -> None:
    """The losses and the policy of one process; a run that goes on from its first checkpoint ends the same."""
    common = f"+experiment={experiment} trainer.max_steps=4 checkpoint_every_n_steps=2 {reward('varied')}"
    succeed(tmp_path, common, "hydra.run.dir=alone")
    alone = losses(store)
    succeed(tmp_path, common, f"trainer={trainer} {TWO} hydra.run.dir=two")
    assert losses(store) == pytest.approx(alone, rel=1e-5, abs=1e-7)
    assert list(alone) == [1, 2, 3, 4]
    policies = [policy(tmp_path / name / "policy") for name in ("alone", "two")]
    for name, weight in policies[0].items():
        assert (policies[1][name] - weight).abs().max() <= 1e-5, name
    succeed(tmp_path, common, f"trainer={trainer} {TWO} ckpt_path=two/checkpoints/previous.ckpt export_to=resumed")
    succeed(tmp_path, "logger=none task=export ckpt_path=two export_to=exported")
    (tmp_path / "two" / "finished.json").unlink()  # as after a kill between the last checkpoint and the policy's export
    succeed(tmp_path, common, f"trainer={trainer} {TWO} ckpt_path=two export_to=started_again")
    for again in ("resumed", "exported", "started_again"):
        found = policy(tmp_path / again)
        assert all(found[name].equal(weight) for name, weight in policies[1].items()), again
    assert "avg_at_4" in succeed(tmp_path, "logger=none task=evaluate policy=hf policy.name=exported")


def test_checkpoints_that_cannot_go_on_are_refused(tmp_path: Path) -> None:
    common = f"+experiment=grpo logger=none trainer.max_steps=1 {reward('varied')}"
    succeed(tmp_path, common, "hydra.run.dir=alone")
    succeed(tmp_path, common, f"trainer=deepspeed_zero1 {TWO} hydra.run.dir=two")
    more = "trainer.max_steps=2"
    for overrides, expected in (
        ("ckpt_path=two", "was written by DeepSpeed's ZeRO stage 1 on 2 ranks, and this run has another strategy; set"),
        (f"trainer=deepspeed_zero2 {TWO} ckpt_path=two", "and this run has stage 2 on 2; set trainer=deepspeed_zero1"),
        (f"trainer=deepspeed_zero1 {TWO} trainer.devices=4 ckpt_path=two", "and this run has stage 1 on 4; set"),
        (f"trainer=deepspeed_zero1 {TWO} ckpt_path=alone", "is a checkpoint of trainer=ddp or of one process and cannot"),
    ):
        refused = run(tmp_path, common, more, overrides)
        assert refused.returncode == 1, overrides
        assert expected in refused.stdout + refused.stderr


def policy(folder: Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(folder).state_dict())


@pytest.mark.parametrize("trainer", ["ddp", "deepspeed_zero3"])
def test_the_warm_start_on_two_processes(trainer: str, store: str, tmp_path: Path) -> None:
    """A fresh policy, whose tokenizer is not in the checkpoint, is exported too."""
    small = "supervised.batch_size=8 supervised.tokenizer_problems=100 policy.hidden_size=32 trainer.max_steps=4"
    common = f"+experiment=warm_start {small}"
    succeed(tmp_path, common, "hydra.run.dir=alone")
    alone = losses(store)
    succeed(tmp_path, common, f"trainer={trainer} {TWO} hydra.run.dir=two")
    assert losses(store) == pytest.approx(alone, rel=1e-5)
    assert len(alone) == 4
    succeed(tmp_path, common, "logger=none task=export ckpt_path=two export_to=exported")
    trained, exported = policy(tmp_path / "two" / "policy"), policy(tmp_path / "exported")
    assert all(exported[name].equal(weight) for name, weight in trained.items())


PLACES = {
    "reward": reward("breaking"),
    "scorer": f"{reward('varied')} scorer._target_=support.failing_rank.BreakingScorer",
    "update": f"{reward('varied')} optimizer._target_=support.failing_rank.BreakingAdamW",
}


@pytest.mark.parametrize("place", list(PLACES))
def test_a_rank_that_fails_under_zero3_ends_the_run_with_its_error(place: str, tmp_path: Path) -> None:
    common = f"+experiment=grpo logger=none trainer=deepspeed_zero3 {TWO} trainer.max_steps=4 hydra.run.dir=run"
    done = run(tmp_path, common, PLACES[place], BREAKING_RANK="1", BREAKING_HOW="raise")
    ended = time.time()
    assert done.returncode == 1, done.stderr[-2000:]
    assert "rank 1 failed first: ArithmeticError: broken on purpose" in done.stderr + done.stdout
    noted = json.loads((tmp_path / "run" / "error-rank1.json").read_text())
    assert ended - noted["time"] < GRACE_S + 30, "the machine may be busy; nothing waits for a collective's time-out of minutes"
