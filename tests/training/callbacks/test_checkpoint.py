"""Checkpoints on a full disk and damaged ones."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import resource
import signal
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from support.fixtures import fit, make_module, tiny_policy

from oar_lightning.common.config_check import ConfigError
from oar_lightning.training.callbacks import LastCheckpoint, RandomState, RunIdentity
from oar_lightning.training.callbacks.kept import KeepConfig
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.wiring.resume import read_saved


class FullDisk(L.Callback):
    """No file can grow beyond a kilobyte during one optimizer step."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.former = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        soft = 1024 if trainer.global_step + 1 == self.step else self.former[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, self.former[1]))

    def on_exception(self, *_: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.former)


def step_of(checkpoint: Path) -> int:
    return int(torch.load(checkpoint, weights_only=True)["global_step"])


def test_a_checkpoint_that_cannot_be_written_leaves_the_former_one_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[list[str]] = []

    class Look(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
            seen.append(sorted(p.name for p in tmp_path.glob("*")) + [str(step_of(p)) for p in tmp_path.glob("last.ckpt")])

    with caplog.at_level(logging.ERROR):
        fit(make_module(tiny_policy()), 3, [Look(), FullDisk(2), LastCheckpoint(tmp_path, 1)])
    assert seen == [[], ["last.ckpt", "1"], ["last.ckpt", "1"]], "and nothing half written beside it"
    assert "step 2: no checkpoint could be written" in caplog.text
    assert step_of(tmp_path / "last.ckpt") == 3


def test_the_last_checkpoint_of_a_run_must_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File too large"):
        fit(make_module(tiny_policy()), 2, [FullDisk(2), LastCheckpoint(tmp_path, 1)])
    assert step_of(tmp_path / "last.ckpt") == 1


class StopsWithin(L.Callback):
    """Asks for the end at a slot, as a timer may anywhere."""

    def __init__(self, slot: int) -> None:
        self.slot = slot

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.should_stop = trainer.should_stop or batch_idx == self.slot


def test_a_stop_within_an_optimizer_step_waits_for_its_end_and_loses_nothing(tmp_path: Path) -> None:
    def new() -> PolicyOptimization:
        return make_module(tiny_policy(), update=UpdatePlan(problems=3, group_size=4, microbatches=4))

    stopped, resumed, whole = new(), new(), new()
    fit(stopped, 5, [RandomState(), StopsWithin(9), LastCheckpoint(tmp_path, 100)])  # the second of step 3
    assert stopped.trainer.global_step == step_of(tmp_path / "last.ckpt") == 3
    fit(resumed, 5, [RandomState(), LastCheckpoint(tmp_path, 100)], ckpt_path=str(tmp_path / "last.ckpt"))
    fit(whole, 5)
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters(), strict=True))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Checkpoints of steps 2 (previous) and 3 (last)."""
    fit(make_module(tiny_policy()), 3, [RunIdentity(lambda: "run"), LastCheckpoint(tmp_path, 1)])
    return tmp_path / "last.ckpt"


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    """One bit of a weight is another."""
    data = bytearray(path.read_bytes())
    weight = torch.load(path, weights_only=True)["state_dict"]["model.model.norm.weight"].numpy().tobytes()
    data[data.index(weight) + 2] ^= 1
    path.write_bytes(data)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncated, flipped, emptied])
def test_a_damaged_checkpoint_is_refused_or_the_one_before_it_taken(saved: Path, damage: Any) -> None:
    assert read_saved(saved).step == 3
    damage(saved)
    with pytest.raises(ConfigError, match=r"last\.ckpt: not a readable checkpoint.*ckpt_fallback=true goes on from"):
        read_saved(saved)
    found = read_saved(saved, fallback=True)
    assert (found.checkpoint, found.step, found.run_id) == (saved.with_name("previous.ckpt"), 2, "run")
    damage(found.checkpoint)
    with pytest.raises(ConfigError, match=r"previous\.ckpt: not a readable checkpoint"):
        read_saved(saved, fallback=True)


def test_going_on_from_the_one_before_replaces_the_damaged_one_first(saved: Path) -> None:
    truncated(saved)
    previous = saved.with_name("previous.ckpt")
    seen: list[int] = []

    class Look(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
            seen.append(step_of(previous))

    fit(make_module(tiny_policy()), 5, [RunIdentity(lambda: "run"), Look(), LastCheckpoint(saved.parent, 1)], str(previous))
    assert seen == [2, 2, 3], "before steps 3, 4 and 5"
    assert (step_of(previous), step_of(saved)) == (4, 5)


def test_a_run_that_goes_on_from_an_older_checkpoint_leaves_the_later_states_at_once(tmp_path: Path) -> None:
    """A kill before its first save would else bring them back."""
    keep = KeepConfig(last=3)
    fit(make_module(tiny_policy()), 4, [LastCheckpoint(tmp_path, 1, keep)])
    last, older = tmp_path / "last.ckpt", tmp_path / "kept_step_000002.ckpt"
    os.utime(last, (0, 0))
    seen: list[tuple[int, bool]] = []

    class Look(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
            seen.append((step_of(last), (tmp_path / "previous.ckpt").exists()))

    fit(make_module(tiny_policy()), 4, [Look(), LastCheckpoint(tmp_path, 1, keep)], str(older))
    assert seen == [(2, False), (3, True)]
    assert step_of(older) == 2
    assert step_of(tmp_path / "previous.ckpt") == 3
    assert last.stat().st_mtime > 0, "resume=true takes the run that has worked last"


def half_write_and_die(folder: Path) -> None:
    """A run that is killed while it writes its second checkpoint."""
    save = L.Trainer.save_checkpoint

    def interrupted(trainer: L.Trainer, path: Path, *rest: Any) -> None:
        save(trainer, path, *rest)
        if trainer.global_step == 2:
            truncated(path)
            os.kill(os.getpid(), signal.SIGKILL)

    L.Trainer.save_checkpoint = interrupted
    fit(make_module(tiny_policy()), 3, [RunIdentity(lambda: "run"), LastCheckpoint(folder, 1)])


def test_a_kill_in_the_middle_of_a_checkpoint_leaves_the_former_one_whole(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=half_write_and_die, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert read_saved(tmp_path / "last.ckpt").step == 1
    assert len(list(tmp_path.iterdir())) == 2, "the half of one lies beside it"
    fit(make_module(tiny_policy()), 3, [LastCheckpoint(tmp_path, 1)], ckpt_path=str(tmp_path / "last.ckpt"))
    assert step_of(tmp_path / "last.ckpt") == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.ckpt", "previous.ckpt"]


class RunsCode:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_no_code_runs_from_a_checkpoint(form: str, tmp_path: Path) -> None:
    checkpoint, made = tmp_path / "last.ckpt", tmp_path / "made"
    state = {"global_step": 1, "mlflow_run_id": None, "state_dict": RunsCode(made)}
    if form == "torch":
        torch.save(state, checkpoint)
    else:
        checkpoint.write_bytes(pickle.dumps(state))
    with pytest.raises(ConfigError, match="not a readable checkpoint"):
        read_saved(checkpoint)
    with pytest.raises(pickle.UnpicklingError):
        fit(make_module(tiny_policy()), 2, ckpt_path=str(checkpoint))
    assert not made.exists()
    pickle.loads(pickle.dumps(state))
    assert made.exists(), "it would have"
