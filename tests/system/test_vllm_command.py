"""The program with the true vLLM on a CPU (`make vllm`): what a user sees when it trains, evaluates and is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from support import true_vllm
from support.commands import Done, run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not true_vllm.there(), reason=true_vllm.MISSING)]

VLLM = ["+variant=graph", "engine=vllm", "engine.enforce_eager=true", "engine.gpu_memory_utilization=0.1", "logger=csv"]
BRIEF = ["evaluation.problems=4", "evaluation.samples=2", "evaluation.heatmap=false", "rollout.max_new_tokens=208"]
SMALL = ["trainer.max_steps=10", "update.problems=4", "update.group_size=8", "optimizer.lr=1e-3", "schedule.warmup_steps=0"]


def command(folder: Path, *overrides: str, timeout: float = 600) -> Done:
    return run(folder, *overrides, timeout=timeout)


@pytest.mark.parametrize("more", [(), ("policy=hf_lora", "policy.name=graph")], ids=["all weights", "lora"])
def test_training_corrects_nothing_but_rounding(tmp_path: Path, more: tuple[str, ...]) -> None:
    """Ten steps at a high rate: vLLM's log-probabilities are those of the policy of the moment."""
    done = command(tmp_path, "+experiment=oar_g", *VLLM, *BRIEF, *SMALL, *more)
    assert done.code == 0, done.shown
    assert "Held-out accuracy, before and after" in done.shown
    for noise in ("Triton", "[vllm", "MainProcess", "FutureWarning", "Traceback"):
        assert noise not in done.shown
    (file,) = tmp_path.glob("outputs/**/metrics.csv")
    rows = [row for row in csv.DictReader(file.open()) if row.get("sampler/logprob_difference")]
    assert len(rows) >= 5, "a step that teaches nothing logs no ratio"
    assert max(float(row["sampler/logprob_difference"]) for row in rows) < 1e-4
    assert all(abs(float(row["sampler/ratio_mean"]) - 1) < 1e-3 for row in rows)


def test_evaluation_decodes_as_the_packages_own_loop(tmp_path: Path) -> None:
    for place, engine in enumerate((VLLM, ["+variant=graph", "engine=auto", "logger=csv"])):
        done = command(tmp_path, "task=evaluate", *engine, *BRIEF, f"output_root={tmp_path / str(place)}")
        assert done.code == 0, done.shown
    found = {
        file: [json.loads(line)["greedy_completion"] for line in file.read_text().splitlines()]
        for file in tmp_path.glob("*/evaluate/seed0/*/results/graph.jsonl")
    }
    first, second = found.values()
    assert first == second
    assert len(first) == 4


def test_credit_by_continuations(tmp_path: Path) -> None:
    done = command(tmp_path, "+experiment=vineppo", *VLLM, *BRIEF, *SMALL, "trainer.max_steps=2")
    assert done.code == 0, done.shown


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.max_batch=100000"], "rollout.max_batch=100000 is more than vLLM samples at once here"),
        (["engine.gpu_memory_utilization=0.001"], "engine.gpu_memory_utilization=0.001 of the memory leaves too little"),
        (["engine.sleep=true"], "engine.sleep=true: vLLM has no sleep mode on a CPU"),
        (["+variant=asides"], "this one has heads of 24; use engine=auto"),
    ],
    ids=["rows", "memory", "sleep", "heads"],
)
def test_what_it_cannot_do_ends_with_one_message(tmp_path: Path, overrides: list[str], message: str) -> None:
    engine = [o for o in VLLM if o != "+variant=graph" or overrides != ["+variant=asides"]]
    done = command(tmp_path, "task=evaluate", *engine, *BRIEF, *overrides)
    assert done.code == 1, done.shown
    assert message in done.shown
    assert "Traceback" not in done.shown
