"""vLLM on every rank of a job: losses, weights and completions of one rank; over the stand-in, and over the true one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import true_vllm
from support.rank_jobs import run_on_two, run_ranks
from support.vllm_worker import STEPS, train

from oar_lightning.distributed.ranks import interleaved


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return train(tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("trainer", ["ddp", pytest.param("deepspeed_zero3", marks=pytest.mark.slow)])
def test_every_rank_samples_its_own_problems_with_the_current_weights(
    trainer: str, alone: dict[str, Any], tmp_path: Path
) -> None:
    """The second rank has nothing of a benchmark of one problem, and starts its vLLM nevertheless: they start together only."""
    needs_its_extra(trainer)
    first, second = run_on_two(tmp_path, "vllm_worker.py", trainer, timeout=120)
    assert (alone["replicas"], first["replicas"], second["replicas"]) == (1, 2, 2)
    check_two_are_one(alone, first, second)


@pytest.mark.slow
@pytest.mark.skipif(not true_vllm.there(), reason=true_vllm.MISSING)
@pytest.mark.parametrize("trainer", ["ddp", "deepspeed_zero2", "deepspeed_zero3"])
def test_two_ranks_with_the_true_one(trainer: str, tmp_path: Path) -> None:
    needs_its_extra(trainer)
    (alone,) = run_ranks(tmp_path / "alone", "vllm_worker.py", "ddp", "true", ranks=1)
    check_two_are_one(alone, *run_ranks(tmp_path / "two", "vllm_worker.py", trainer, "true", ranks=2))


def needs_its_extra(trainer: str) -> None:
    if trainer.startswith("deepspeed"):
        pytest.importorskip("deepspeed", reason="the extra deepspeed is not installed", exc_type=ImportError)


def check_two_are_one(alone: dict[str, Any], first: dict[str, Any], second: dict[str, Any]) -> None:
    losses = [[row["loss"] for row in found["rows"].values()] for found in (alone, first)]
    assert len(losses[0]) == STEPS
    assert losses[1] == pytest.approx(losses[0], rel=1e-5, abs=1e-7)
    for row in first["rows"].values():  # what vLLM drew from is the policy of the moment
        assert row["sampler/logprob_difference"] == pytest.approx(0, abs=1e-5)
    for whole, *parts in zip(alone["completions"], first["completions"], second["completions"], strict=True):
        groups = [[part[i : i + 4] for i in range(0, len(part), 4)] for part in parts]
        assert list(whole) == [text for group in interleaved(groups) for text in group]
    assert first["history"] == second["history"] == alone["history"]
    for key, weight in alone["weights"].items():
        assert first["weights"][key].equal(second["weights"][key]), key
        assert (first["weights"][key] - weight).abs().max() <= 2e-5, key
    assert first["events"].count("generate") > second["events"].count("generate") >= STEPS // PLAN_STEPS


PLAN_STEPS = 2
"""Optimizer steps for each batch of rollouts."""
