"""Several ranks against one: the same seed and global batch give the same losses, weights and metrics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import run
from support.rank_jobs import train_on_two
from support.rank_worker import CASES, train

from oar_lightning.distributed.ranks import interleaved

OF_DEEPSPEED = ("uniform_short", "oar_g_unused", "oar_p_unused")
"""Cases in which scores do not weigh, for optimizers that round; the first three hold more."""

OWN_MODELS = ["istar", "prime"]
"""Cases whose scorers train a model."""

MORE = ["contrast", "monte_carlo", "shear", "ucas"]
"""Cases that hold what others hold of other scorers."""

NAMES = [name for name in CASES if name not in (*OF_DEEPSPEED, *OWN_MODELS, *MORE)]
METHODS = NAMES[:3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    """What one rank makes of the cases."""
    return train(NAMES, folder)


@pytest.fixture(scope="module")
def both(alone: dict[str, Any], folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return alone, train_on_two(folder, "ddp", [*NAMES, "resumed"])


Both = tuple[dict[str, Any], list[dict[str, Any]]]

OWN = ("time/", "update/", "memory/", "credit/forward_equivalents", "credit/rank_stability")
"""Metrics of how the work was done, which may differ; rank stability is measured on a few rows of each rank."""


@pytest.mark.parametrize("name", NAMES)
def test_the_losses_are_those_of_one_rank(name: str, both: Both) -> None:
    one, two = both[0][name]["rows"], both[1][0][name]["rows"]
    assert len(one) == len(two) == CASES[name].steps
    losses = [{step: row["loss"] for step, row in rows.items() if "loss" in row} for rows in (one, two)]
    # ucas divides the sums of float32 certainties by their spread; near 0 a mean of terms near 1 has their rounding
    near = 5e-5 if name == "ucas" else 5e-7
    assert losses[1] == pytest.approx(losses[0], rel=1e-5, abs=near)
    assert bool(losses[0]) == (name != "nobody_learns")
    if name in METHODS:
        assert len(losses[0]) == 20
        assert max(map(abs, losses[0].values())) > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_end_with_the_weights_of_one(name: str, both: Both) -> None:
    one, (first, second) = both[0][name]["weights"], [found[name]["weights"] for found in both[1]]
    before = dict(CASES[name].module().model.named_parameters())
    learned = max(float((one[key] - before[key].detach()).abs().max()) for key in one)
    assert (learned > 0) == (name != "nobody_learns")
    for key in one:
        assert torch.equal(first[key], second[key]), key
        assert (first[key] - one[key]).abs().max() <= 0.02 * learned, key


@pytest.mark.parametrize("name", NAMES)
def test_metrics_and_completions_are_those_of_one_rank(name: str, both: Both) -> None:
    one, two = both[0][name]["rows"], both[1][0][name]["rows"]
    for step in one:
        rows = [{k: v for k, v in row.items() if not k.startswith(OWN)} for row in (one[step], two[step])]
        assert rows[1].keys() == rows[0].keys()
        for key in rows[0]:  # correlations divide by spreads that may be tiny
            assert rows[1][key] == pytest.approx(rows[0][key], rel=1e-3, abs=2e-3 if "corr_" in key else 1e-5), key
        drawn = [{k: v for k, v in row.items() if k.startswith("data/")} for row in rows]
        assert drawn[1] == drawn[0]
        exact = ("reward", "rewards/accuracy", "num_tokens", "completions/max_length", "completions/min_length")
        assert {k: rows[1][k] for k in exact if k in rows[1]} == {k: rows[0][k] for k in exact if k in rows[0]}
    for whole, *parts in zip(both[0][name]["completions"], *(found[name]["completions"] for found in both[1]), strict=True):
        groups = [[part[i : i + 4] for i in range(0, len(part), 4)] for part in parts]
        assert list(whole) == [text for group in interleaved(groups) for text in group]


def test_an_entropy_term_follows_the_entropy_of_all_ranks(both: Both) -> None:
    """By its rule, from the entropies that are logged: some steps have the term and some have none."""
    for rows in (both[0]["stepped_entropy"]["rows"], both[1][0]["stepped_entropy"]["rows"]):
        kept, term, expected = 0.05, False, []
        for row in rows.values():
            expected.append(kept if term else 0.0)
            term = row["entropy"] <= row["entropy_target"]
            kept += 0.02 if term else -0.02
        assert [row["entropy_coef"] for row in rows.values()] == pytest.approx(expected)
        assert 0 < sum(coef > 0 for coef in expected[1:]) < 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_more_methods_go_as_on_one_rank(tmp_path: Path) -> None:
    """Models that scorers train are equal on all ranks, and near that of one: AdamW divides gradients by their size, and so
    rounding."""
    names = [*MORE, *OWN_MODELS]
    both = train(names, tmp_path), train_on_two(tmp_path, "ddp", names)
    for name in names:
        test_the_losses_are_those_of_one_rank(name, both)
        test_all_ranks_end_with_the_weights_of_one(name, both)
        test_metrics_and_completions_are_those_of_one_rank(name, both)
    for name in OWN_MODELS:
        one, (first, second) = both[0][name]["own"], [found[name]["own"] for found in both[1]]
        start = dict(CASES[name].module().model.named_parameters())
        learned = max(float((one[key] - start[key].detach()).abs().max()) for key in one)
        assert learned > 1e-3
        for key in one:
            assert torch.equal(first[key], second[key]), key
            assert (first[key] - one[key]).abs().max() <= 0.02 * learned, key


def test_a_rank_without_a_signal_runs_along(both: Both) -> None:
    """The cases are such: some optimizer steps have one problem of two that teaches, or one demonstration, or none."""
    assert 0.5 in [row.get("frac_reward_zero_std") for row in both[0]["some_learn"]["rows"].values()]
    too_long = [row["too_long_frac"] for row in both[0]["warm_start_too_long"]["rows"].values()]
    assert set(too_long) == {0.0, 0.5, 1.0}


@pytest.mark.parametrize(("name", "phases"), [("gives_way", {"rollout", "update"}), ("samples_again", {"rollout"})])
def test_all_ranks_take_the_budgets_of_the_one_that_ran_out_of_memory(name: str, phases: set[str], both: Both) -> None:
    first, second = [rows[name]["rows"] for rows in both[1]]
    budgets = {key.rpartition("_")[2]: value for key, value in first[4].items() if key.startswith("memory/token_budget_")}
    assert budgets.keys() == phases
    assert not any(key.startswith("memory/") for key in both[0][name]["rows"][4])
    assert second[4].keys() == first[4].keys()
    assert budgets.get("update", 0) < 60


def test_another_number_of_ranks_goes_on_with_a_run(both: Both, folder: Path) -> None:
    """From one to two and from two to one, after two of four steps: the same global batches, and the losses of a run that was
    left alone."""
    one, two = both[0]["handed_over"], both[1][0]["handed_over"]
    onto_two, onto_one = both[1][0]["resumed"], train(["resumed"], folder)["resumed"]
    assert one["rows"][4]["data/curriculum/passed_over_frac"] > 0
    for whole, resumed in ((one, onto_two), (two, onto_one)):
        drawn = [{k: v for k, v in rows["rows"][4].items() if k.startswith("data/")} for rows in (whole, resumed)]
        assert drawn[1] == drawn[0]
        losses = [{step: rows["rows"][step]["loss"] for step in (3, 4)} for rows in (whole, resumed)]
        assert list(resumed["rows"]) == [3, 4]
        assert losses[1] == pytest.approx(losses[0], rel=1e-5, abs=1e-7)
        assert resumed["rows"][3]["num_tokens"] == whole["rows"][3]["num_tokens"] > 0
        for key, weight in whole["weights"].items():
            assert torch.allclose(resumed["weights"][key], weight, rtol=0, atol=1e-5), key
    assert onto_one["completions"] == one["completions"][1:]


def test_a_full_disk_leaves_the_former_checkpoint_and_all_ranks_go_on(both: Both) -> None:
    for found in (both[0], *both[1]):
        assert found["full_disk"]["seen"] == [([], 0), (["last.ckpt"], 1), (["last.ckpt"], 1)], "nothing half written beside it"


ENDS = {
    ("1", "kill"): "rank 1 failed first: the process was ended by SIGKILL",
    ("1", "raise"): "rank 1 failed first: ArithmeticError: broken on purpose",
    ("0", "raise"): "ArithmeticError: broken on purpose",
}


@pytest.mark.parametrize(
    ("rank", "how"),
    [
        pytest.param("1", "raise", marks=pytest.mark.slow),
        pytest.param("0", "raise", marks=pytest.mark.slow),
        pytest.param("1", "kill", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_fails_ends_the_run_with_its_error(rank: str, how: str, tmp_path: Path) -> None:
    overrides = (
        "trainer=ddp trainer.accelerator=cpu trainer.devices=2 trainer.precision=32-true num_threads=1 evaluation.problems=2"
    )
    reward = "_target_=oar_lightning.answers.reward.FunctionReward", "path=support.failing_rank.breaking"
    rewards = ["~reward.terms.accuracy", *(f"+reward.terms.accuracy.{setting}" for setting in reward)]
    here = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    done = run(
        tmp_path,
        *("+experiment=smoke", "logger=none", "evaluation.greedy=false"),
        *overrides.split(),
        *rewards,
        timeout=200,
        PYTHONPATH=path,
        BREAKING_RANK=rank,
        BREAKING_HOW=how,
    )
    assert done.code == 1, done.shown[-2000:]
    assert ENDS[rank, how] in done.shown
    assert len(list(tmp_path.glob("outputs/smoke/seed0/*"))) == 1
