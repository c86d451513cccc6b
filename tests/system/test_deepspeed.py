"""DeepSpeed's ZeRO on two CPU processes: the losses, weights and metrics of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.rank_jobs import run_ranks, train_on_two
from support.rank_worker import CASES, train

pytest.importorskip("deepspeed", reason="the extra deepspeed is not installed", exc_type=ImportError)

METHODS = ["grpo", "oar_g", "oar_p"]
UNUSED = ["uniform_short", "oar_g_unused", "oar_p_unused"]
SHORT = [*UNUSED, "lora", "full_disk", "some_learn", "nobody_learns", "warm_start_too_long"]
LONG = [*METHODS, "budget", "samples_again", "warm_start", *SHORT]
OWN = ["istar", "prime"]
"""Scorers that train a model of their own."""
KINDS = {"zero1": SHORT, "zero2": [*LONG, *OWN], "zero2_offload": SHORT, "zero3": LONG, "zero3_offload": SHORT}


def check(name: str, alone: dict[str, Any], found: dict[str, Any]) -> None:
    one, two = alone[name]["rows"], found[name]["rows"]
    assert one.keys() == two.keys()
    losses = [{step: row["loss"] for step, row in rows.items() if "loss" in row} for rows in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5, abs=1e-7), name
    norms = [{s: row["grad_norm"] for s, row in rows.items() if {"loss", "grad_norm"} <= row.keys()} for rows in (one, two)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-3), name
    for key, weight in alone[name]["weights"].items():
        assert (found[name]["weights"][key] - weight).abs().max() <= 2e-5, (name, key)
    if alone[name]["own"]:
        check_own(name, alone, found)


def check_own(name: str, alone: dict[str, Any], found: dict[str, Any]) -> None:
    """A scorer's own model, as under DDP (`test_ddp.py`): AdamW divides gradients by their size, and so rounding."""
    one, two = alone[name]["own"], found[name]["own"]
    start = dict(CASES[name].module().model.named_parameters())
    learned = max(float((weight - start[key].detach()).abs().max()) for key, weight in one.items())
    assert learned > 1e-3
    assert two.keys() == one.keys()
    for key, weight in one.items():
        assert (two[key] - weight).abs().max() <= 0.02 * learned, (name, key)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one rank makes of the cases."""
    return train([*LONG, *OWN], tmp_path_factory.mktemp("alone"))


@pytest.mark.slow
def test_a_few_steps_of_stage_3_with_every_scorer(tmp_path: Path) -> None:
    """A quick part of the test below."""
    names = ["uniform_short", "oar_g_unused", "oar_p_unused"]
    alone, (found, second) = train(names, tmp_path), train_on_two(tmp_path, "deepspeed_zero3", names)
    for name in names:
        check(name, alone, found)
        for key, weight in found[name]["weights"].items():
            assert weight.equal(second[name]["weights"][key]), (name, key)


def test_one_rank_goes_on_where_a_micro_batch_has_nothing_to_learn(tmp_path: Path) -> None:
    """DeepSpeed refuses a micro-batch without a loss, on one rank, too."""
    names = ["some_learn", "nobody_learns", "warm_start_too_long"]
    (found,) = run_ranks(tmp_path / "zero", "rank_worker.py", "deepspeed_zero2", *names, ranks=1)
    alone = train(names, tmp_path)
    for name in names:
        check(name, alone, found)
    assert not [row for row in found["nobody_learns"]["rows"].values() if "grad_norm" in row], "as on one device without it"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_stage_gives_the_losses_of_one_rank(kind: str, alone: dict[str, Any], tmp_path: Path) -> None:
    """All three methods (stages 2 and 3: over 20 steps); steps in which one rank, or none, has anything to learn; the
    supervised warm start."""
    found, second = train_on_two(tmp_path, f"deepspeed_{kind}", KINDS[kind])
    for name in KINDS[kind]:
        check(name, alone, found)
        for key, weight in found[name]["weights"].items():
            assert weight.equal(second[name]["weights"][key]), "all ranks end with the same weights"
        for key, weight in found[name]["own"].items():
            assert weight.equal(second[name]["own"][key]), "and so do models that scorers train"
    assert [step for _, step in found["full_disk"]["seen"]] == [0, 1, 1]
    assert len(alone["grpo"]["rows"]) == 20
    for name in set(OWN) & set(KINDS[kind]):
        assert alone[name]["own"], "its model was compared"
    for name in UNUSED:  # scoring changes nothing that training sees
        for key, weight in found["uniform_short"]["weights"].items():
            assert weight.equal(found[name]["weights"][key]), (name, key)
