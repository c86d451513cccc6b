"""Runs from a program: what is refused, what reaches Lightning, and an interrupt. The numbers: documentation/test_python.py."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from support.fixtures import TASK, Recorder

from oar_lightning import (
    EvaluationConfig,
    FreshPolicy,
    ListedProblems,
    MathProblem,
    Method,
    PretrainedPolicy,
    SamplingConfig,
    Schedule,
    Settings,
    SupervisedConfig,
    UpdatePlan,
    train,
)
from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.locks import FileLock
from oar_lightning.credit.fit import usual_gate
from oar_lightning.credit.scorers import Prime, Uniform
from oar_lightning.credit.scorers.hindsight import Rlsd
from oar_lightning.data.chain.task import ChainProblems
from oar_lightning.distributed.deepspeed_strategy import ZeroRedundancy
from oar_lightning.objective.loss import LossConfig
from oar_lightning.sweep.trial import Diverged
from oar_lightning.training.callbacks import DivergenceConfig
from oar_lightning.training.train import new_folder

PROBLEMS = ListedProblems([ChainProblems(TASK)[i] for i in range(3)])

SMALL = Settings(
    PretrainedPolicy("chain"),
    PROBLEMS,
    {"own": PROBLEMS},
    method=Method(update=UpdatePlan(problems=1, group_size=2), sampling=SamplingConfig(max_new_tokens=8)),
    evaluation=EvaluationConfig(problems=1, samples=1, greedy=False, heatmap=False),
)


@pytest.mark.parametrize(
    ("changes", "arguments", "expected"),
    [
        ({}, {"max_steps": 0}, "max_steps counts optimizer steps .* got 0"),
        ({}, {"max_steps": True}, "got True"),
        ({}, {"max_steps": 1, "accumulate_grad_batches": 2}, "accumulate_grad_batches=2 is set by the run"),
        ({}, {"max_steps": 1, "max_time": "00:00:01:00"}, "max_time='00:00:01:00' is set by the run"),
        *(  # Lightning would make an optimizer step of the last batch that it reads, whatever part of the step that is
            ({}, {"max_steps": 1, key: 2}, f"{key}=2 is set by the run")
            for key in ("limit_train_batches", "overfit_batches", "fast_dev_run", "enable_checkpointing")
        ),
        ({"train": None}, {"max_steps": 1}, "train=None leaves nothing to train on"),
        ({"eval_sets": {}}, {"max_steps": 1}, "names no evaluation set"),
        (
            {"eval_sets": {}, "evaluation": EvaluationConfig(problems=None, samples=1)},
            {"max_steps": 1},
            "names no evaluation set",
        ),
        ({"policy": FreshPolicy()}, {"max_steps": 1}, "policy=fresh is a random policy"),
    ],
)
def test_what_cannot_train_is_refused_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any], arguments: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        train(dataclasses.replace(SMALL, **changes), folder=tmp_path / "run", **arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("scorer", "loss", "stage", "arguments", "expected"),
    [
        (Rlsd(), LossConfig(), 3, {}, "scorer/teacher=lagged copies the policy's weights, which ZeRO-3 has sharded"),
        (Prime(), LossConfig(), 3, {}, "the scorer trains a copy of the policy's weights, which ZeRO-3 has sharded"),
        (Uniform(), LossConfig(kl_coef=0.1, kl_from=0.5), 3, {}, "loss.kl_from copies the policy's weights, which ZeRO-3"),
        (Prime(), LossConfig(), 2, {"precision": "16-mixed"}, "trainer.precision=16-mixed: the scorer trains a model of"),
        (Uniform(), LossConfig(), 2, {"gradient_clip_algorithm": "value"}, "DeepSpeed clips by the norm alone; leave it out"),
    ],
)
def test_what_a_strategy_cannot_do_is_refused_before_an_evaluation(
    tmp_path: Path, scorer: Any, loss: LossConfig, stage: int, arguments: dict[str, Any], expected: str
) -> None:
    pytest.importorskip("deepspeed")
    method = dataclasses.replace(SMALL.method, scorer=scorer, gate=usual_gate(scorer), loss=loss)
    settings, strategy = dataclasses.replace(SMALL, method=method), ZeroRedundancy(stage)
    with pytest.raises(ValueError, match=expected):
        train(settings, 1, tmp_path, strategy=strategy, accelerator="cpu", devices=1, **arguments)
    assert not list(tmp_path.glob("**/evaluation*"))


def test_several_ranks_need_the_name_of_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    two = dataclasses.replace(SMALL, method=dataclasses.replace(SMALL.method, update=UpdatePlan(problems=2, group_size=2)))
    with pytest.raises(ConfigError, match="folder=None names no folder that 2 ranks share"):
        train(two, max_steps=1, accelerator="cpu", devices=2, strategy="ddp")


class Ends(L.Callback):
    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.should_stop = trainer.should_stop or trainer.global_step == 2


def test_a_run_that_a_callback_ends_is_evaluated_where_it_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = train(SMALL, 5, tmp_path, callbacks=[Ends()], enable_progress_bar=False)
    assert [row["step"] for row in run.evaluation.history] == [0, 2]
    assert run.folder == tmp_path
    assert "a callback has ended training at step 2 of 5" in caplog.text


class Forgets(L.Callback):
    """All that the policy knows, within the second step."""

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        if trainer.global_step == 1:
            for parameter in module.parameters():
                parameter.data.zero_()


def test_the_step_at_which_a_run_collapses_is_logged(tmp_path: Path) -> None:
    recorder = Recorder()
    settings = dataclasses.replace(
        SMALL,
        evaluation=EvaluationConfig(problems=3, samples=4, greedy=False, heatmap=False, every_n_steps=1),
        method=dataclasses.replace(SMALL.method, sampling=SamplingConfig(max_new_tokens=48)),
        divergence=DivergenceConfig(collapse=0.01),
    )
    with pytest.raises(Diverged, match=r"collapse: the sampled accuracy is 0\.000 at step 2"):
        train(settings, 5, tmp_path / "run", logger=recorder, callbacks=[Forgets()], enable_progress_bar=False)
    assert [step for step, row in recorder.rows.items() if "reward" in row] == [1, 2]


def test_a_folder_in_which_a_run_is_at_work_is_refused(tmp_path: Path) -> None:
    with FileLock(tmp_path / "run.lock"), pytest.raises(ConfigError, match="another run is at work there"):
        train(SMALL, 1, tmp_path)


def test_new_folders_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("oar_lightning.training.train.run_name", lambda: "now")
    for name in ("now", "now-2", "now-3"):
        folder = new_folder(7)
        assert folder == Path("outputs", "python", "seed7", name)
        folder.mkdir(parents=True)


class Interrupts(L.Callback):
    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_ends_the_step_saves_and_says_where(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match=f"stopped at step 1 of 50; {tmp_path} has the checkpoint"):
        train(SMALL, 50, tmp_path, callbacks=[Interrupts()], enable_progress_bar=False)
    assert (tmp_path / "checkpoints" / "last.ckpt").exists()
    assert FileLock(tmp_path / "run.lock").acquire(wait=False), "the folder is free again"


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_text("")
    with pytest.raises(ConfigError, match=f"folder={tmp_path} holds a run"):
        train(SMALL, 1, tmp_path, enable_progress_bar=False)


class InterruptsTwice(L.Callback):
    """Within a step, the second time before it has ended."""

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


class InterruptsLoading(L.Callback):
    def on_fit_start(self, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("interrupts", [InterruptsTwice(), InterruptsLoading()], ids=["twice", "while loading"])
def test_an_interrupt_that_waits_for_no_step_is_one_all_the_same(interrupts: L.Callback, tmp_path: Path) -> None:
    """And no exit with code 1, which a script would take for a failure."""
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="interrupted before the end of a step"):
        train(SMALL, 50, tmp_path, callbacks=[interrupts], enable_progress_bar=False)
    assert signal.getsignal(signal.SIGINT) is handler


class EndedWithItsSweep(L.Callback):
    """SIGTERM reaches all processes, and then the sweep sends SIGINT to its trial."""

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)


def test_a_trial_that_is_ended_with_its_sweep_finishes_its_step(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match="stopped at step 1 of 50"):
        train(SMALL, 50, tmp_path, callbacks=[EndedWithItsSweep()], enable_progress_bar=False)
    assert (tmp_path / "checkpoints" / "last.ckpt").exists()


class ExitsLoading(L.Callback):
    def on_fit_start(self, *_: Any) -> None:
        sys.exit(143)


def test_an_exit_while_loading_keeps_its_code(tmp_path: Path) -> None:
    """As on SIGTERM, which is no Ctrl-C."""
    with pytest.raises(SystemExit) as caught:
        train(SMALL, 50, tmp_path, callbacks=[ExitsLoading()], enable_progress_bar=False)
    assert caught.value.code == 143


class Remembers(L.pytorch.loggers.Logger):
    name, version = "remembers", 0

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []

    def log_hyperparams(self, *_: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged.append(metrics)


def test_a_warm_start_with_a_logger_and_an_optimizer_of_ones_own(tmp_path: Path) -> None:
    small = FreshPolicy(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=16, vocab_size=300)
    solved = ListedProblems(
        [MathProblem(f"{n}+1?", str(n + 1), solution=f"The answer is \\boxed{{{n + 1}}}.") for n in range(8)]
    )
    warm = dataclasses.replace(
        SMALL,
        policy=small,
        train=solved,
        schedule=Schedule("constant", warmup_steps=0),
        supervised=SupervisedConfig(batch_size=4, tokenizer_problems=8),
        optimizer=functools.partial(torch.optim.SGD, lr=0.5),
    )
    logger = Remembers()
    run = train(warm, 3, tmp_path, logger=logger, enable_progress_bar=False)
    assert isinstance(run.trainer.optimizers[0], torch.optim.SGD)
    losses = [metrics["loss"] for metrics in logger.logged if "loss" in metrics]
    assert len(logger.logged) > len(losses), "the evaluations are logged too"
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == 3
