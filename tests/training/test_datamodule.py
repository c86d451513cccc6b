"""The data module in a training run: what was dropped is logged, and counted on after a resume."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import pytest
import torch
from support import fixtures
from support.fixtures import TASK, fit, make_module, tiny_policy, weights
from support.numbered import PLAN, Numbers, answers

from oar_lightning.data.chain.task import ChainProblems
from oar_lightning.data.curriculum import DifficultyCurriculum
from oar_lightning.data.stream import ProblemStream
from oar_lightning.training.callbacks import GracefulStop, LastCheckpoint, RandomState, RunIdentity
from oar_lightning.training.datamodule import MathDataModule
from oar_lightning.training.slots import SlotLoader, UpdatePlan
from oar_lightning.training.supervised import BatchLoader, SupervisedConfig
from oar_lightning.types import MathProblem


def one_step_only(problem: MathProblem) -> str | None:
    return None if problem.level == "1" else "two steps"


def test_drops_are_logged_each_step_and_go_on_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixtures, "MathDataModule", functools.partial(MathDataModule, keep=one_step_only))

    def callbacks(name: str) -> list[object]:
        return [RandomState(), RunIdentity(lambda: "run"), GracefulStop(), LastCheckpoint(tmp_path / name, 0)]

    rows = fit(make_module(tiny_policy()), 4, callbacks("whole")).rows
    walked = itertools.accumulate(problem.level != "1" for problem in itertools.islice(ChainProblems(TASK), 100))
    kept = itertools.accumulate(problem.level == "1" for problem in itertools.islice(ChainProblems(TASK), 100))
    # when the 2nd, 4th, ... problem is kept, so many were passed over
    dropped_at = {k: d for d, k in reversed(list(zip(walked, kept, strict=True)))}
    expected = {step: float(dropped_at[2 * step]) for step in range(1, 5)}
    assert expected[4] > 0
    assert {step: row.get("data/dropped/two_steps", 0.0) for step, row in rows.items()} == expected
    assert all("data/dropped/two_steps" in row for step, row in rows.items() if expected[step]), "only where there is any"

    fit(make_module(tiny_policy()), 2, callbacks("part"))
    checkpoint = str(tmp_path / "part" / "last.ckpt")
    resumed = fit(make_module(tiny_policy(1)), 4, callbacks("part"), ckpt_path=checkpoint).rows
    assert {s: r["data/dropped/two_steps"] for s, r in resumed.items()} == {s: expected[s] for s in (3, 4)}


@pytest.mark.parametrize("stop", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_curriculum_resumes_bit_for_bit(stop: int, tmp_path: Path) -> None:
    """Two optimizer steps a batch of rollouts: a checkpoint within one, and one between two."""
    plan = UpdatePlan(problems=4, group_size=4, minibatches=2)

    def run(name: str, steps: int, **resumed: str) -> tuple[dict[int, dict[str, float]], dict[str, torch.Tensor]]:
        module = make_module(tiny_policy(), update=plan)
        callbacks = [RandomState(), RunIdentity(lambda: "run"), GracefulStop(), LastCheckpoint(tmp_path / name, stop)]
        return fit(module, steps, callbacks, curriculum=DifficultyCurriculum(floor=0.01), **resumed).rows, weights(module)

    rows, learned = run("whole", 6)
    resumed, same = run("resumed", 6, ckpt_path=str(tmp_path / "whole" / "previous.ckpt"))
    assert list(resumed) == list(range(stop + 1, 7))
    for step, row in resumed.items():
        compared = {name for name in row if not name.startswith("time/")}
        assert {name: row[name] for name in compared} == {name: rows[step][name] for name in compared}
    assert all(torch.equal(a, b) for a, b in zip(learned.values(), same.values(), strict=True))
    assert rows[6]["data/curriculum/passed_over_frac"] > rows[2]["data/curriculum/passed_over_frac"] == 0.0
    assert [rows[step]["data/curriculum/stage"] for step in (2, 4, 6)] == [1, 1, 2]


def test_a_batch_loader_resumes() -> None:
    whole = BatchLoader(ProblemStream(Numbers(5), seed=1), 3, steps=4)
    assert len(whole) == 4
    for batch in itertools.islice(whole, 2):
        assert len(batch) == 3
    resumed = BatchLoader(ProblemStream(Numbers(5), seed=1), 3, steps=4)
    resumed.load_state_dict(whole.state_dict())
    assert [answers(b) for b in itertools.islice(resumed, 4)] == [answers(b) for b in itertools.islice(whole, 4)]


def test_the_data_module_gives_slots_to_a_plan_and_batches_to_a_size() -> None:
    assert isinstance(MathDataModule(Numbers(5), 0, 3, PLAN).train_dataloader(), SlotLoader)
    loader = MathDataModule(Numbers(5), 0, 3, SupervisedConfig(batch_size=4)).train_dataloader()
    assert isinstance(loader, BatchLoader)
    assert (len(loader), loader.batch_size) == (3, 4)
