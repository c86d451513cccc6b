"""What sweeps ask of a run: divergence is an error, hopeless trials end early, seconds add up over its starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from optuna.distributions import UniformDistribution
from optuna.trial import TrialState, create_trial
from support.fixtures import ConstantReward, Recorder, fit, make_module, tiny_policy

from oar_lightning.credit.gates import BilevelGate, Gate, SignedGate
from oar_lightning.credit.scorers import Uniform
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.distributed.strategies import ZeroAdapter
from oar_lightning.sweep.storage import SweepStorage
from oar_lightning.sweep.trial import Diverged, Pruned, Pruning, Ticket
from oar_lightning.training.callbacks import Divergence, DivergenceConfig, RunSeconds, divergence
from oar_lightning.training.callbacks.trial import MedianPruning
from oar_lightning.types import Rollouts


class Evaluation:
    """An evaluation after every step, with these accuracies from step 0 on."""

    def __init__(self, accuracies: Sequence[float]) -> None:
        self.values = list(accuracies)
        self.history: list[dict[str, Any]] = [{"step": 0}]

    def at(self, step: int) -> SimpleNamespace:
        """A trainer at this step."""
        self.history.append({"step": step})
        strategy = SimpleNamespace(broadcast=lambda value: value)
        return SimpleNamespace(global_step=step, max_steps=10, is_global_zero=True, strategy=strategy)

    def accuracies(self) -> tuple[float, float]:
        return self.values[0], self.values[self.history[-1]["step"]]


def end_of_step(callback: L.Callback, evaluation: Evaluation, step: int, loss: float = 0.1) -> None:
    callback.on_train_batch_end(evaluation.at(step), None, {"loss": torch.tensor(loss)}, None, 0)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_where_gradients_cannot_be_seen_a_loss_that_is_no_number_ends_training(loss: float) -> None:
    evaluation = Evaluation([0.4] * 4)
    callback = Divergence(DivergenceConfig(), evaluation)
    end_of_step(callback, evaluation, 1)
    with pytest.raises(Diverged, match=rf"the loss is {loss} at step 2; lower optimizer\.lr"):
        end_of_step(callback, evaluation, 2, loss)


def test_steps_that_deepspeed_leaves_out_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "adapt", lambda trainer: ZeroAdapter(trainer.strategy))
    evaluation = Evaluation([0.4] * 9)
    callback = Divergence(DivergenceConfig(max_skipped_steps=1), evaluation)
    engine = SimpleNamespace(skipped_steps=5, fp16_enabled=lambda: False)

    def trainer(step: int, engine: SimpleNamespace = engine) -> SimpleNamespace:
        strategy = SimpleNamespace(model=engine, stage=2, world_size=2)
        return SimpleNamespace(**{**vars(evaluation.at(step)), "strategy": strategy}, callback_metrics={}, loggers=[])

    callback.on_train_start(trainer(0), None)  # five of them before a resume
    for step, skipped in ((1, 5), (2, 6), (3, 6)):
        engine.skipped_steps = skipped
        callback.on_train_batch_end(trainer(step), None, {"loss": torch.tensor(float("nan"))}, None, 0)
    assert callback.skipped == 1
    engine.skipped_steps = 7
    with pytest.raises(Diverged, match=r"not finite at step 4, and more than divergence\.max_skipped_steps=1"):
        callback.on_train_batch_end(trainer(4), None, {"loss": torch.tensor(0.1)}, None, 0)
    scaled = SimpleNamespace(skipped_steps=9, fp16_enabled=lambda: True)
    with pytest.raises(Diverged, match="the loss is nan"):
        callback.on_train_batch_end(trainer(5, scaled), None, {"loss": torch.tensor(float("nan"))}, None, 0)


def test_a_collapse_is_an_accuracy_below_a_share_of_the_first() -> None:
    evaluation = Evaluation([0.4, 0.25, 0.19])
    callback = Divergence(DivergenceConfig(collapse=0.5), evaluation)
    end_of_step(callback, evaluation, 1)
    with pytest.raises(
        Diverged, match=r"collapse: the sampled accuracy is 0\.190 at step 2, below divergence\.collapse=0\.5 of 0\.400"
    ):
        end_of_step(callback, evaluation, 2)
    for level in ([0.0, 0.0], [0.4, 0.2]):  # not below it
        bearing = Evaluation(level)
        end_of_step(Divergence(DivergenceConfig(collapse=0.5), bearing), bearing, 1)
    unbothered = Evaluation([0.4, 0.0])
    end_of_step(Divergence(DivergenceConfig(), unbothered), unbothered, 1)


@pytest.mark.parametrize("collapse", [0.0, 1.5, -0.1])
def test_a_bad_share_names_its_key(collapse: float) -> None:
    with pytest.raises(ValueError, match=r"divergence\.collapse"):
        DivergenceConfig(collapse)


SIGNAL = {"reward": 0.5, "credit/no_advantage_frac": 0.9, "credit/invalid_frac": 0.5}
NO_GROUP = SIGNAL | {"credit/no_advantage_frac": 1.0}
NO_SCORES = SIGNAL | {"credit/invalid_frac": 1.0}


def test_silent_batches_in_a_row_end_training(caplog: pytest.LogCaptureFixture) -> None:
    callback = Divergence(DivergenceConfig(max_silent_steps=3), Evaluation([0.4]))
    for step, metrics in enumerate((NO_GROUP, NO_SCORES, SIGNAL, NO_GROUP, {"loss": 0.0}, NO_GROUP), start=1):
        callback.on_step_metrics(step, metrics)
    assert [line.split(":")[0] for line in caplog.messages] == ["step 1 teaches nothing", "step 4 teaches nothing"]
    other = Divergence(DivergenceConfig(max_silent_steps=3), Evaluation([0.4]))
    other.load_state_dict(callback.state_dict())
    with pytest.raises(Diverged, match=r"max_silent_steps=3 .*not above -1, or negative ones only.*correct scorer"):
        other.on_step_metrics(7, NO_SCORES)
    never = Divergence(DivergenceConfig(max_silent_steps=None), Evaluation([0.4]))
    for step in range(99):
        never.on_step_metrics(step, NO_GROUP)
    explores = Divergence(DivergenceConfig(max_silent_steps=3), Evaluation([0.4]), entropy_teaches=True)
    for step in range(9):
        explores.on_step_metrics(step, NO_GROUP)
    assert explores.silent == 0


class Ones(Scorer):
    """Has scores whatever the group's rewards, as VinePPO's values are."""

    signed = reads_all_rows = True

    def __call__(self, model: Any, rollouts: Rollouts) -> torch.Tensor:
        return rollouts.response_mask.double()


@pytest.mark.parametrize(("scorer", "gate", "teaches"), [(Ones(), SignedGate(), True), (Uniform(), BilevelGate(), False)])
def test_equal_rewards_are_no_silence_where_tokens_have_an_advantage(scorer: Scorer, gate: Gate, teaches: bool) -> None:
    module = make_module(tiny_policy(), scorer=scorer, gate=gate, reward=ConstantReward())
    rows = fit(module, 2).rows
    assert rows[1]["frac_reward_zero_std"] == 1
    assert (divergence.silence(rows[1]) is None) == teaches


def test_training_itself_ends_where_its_gradients_are_nan() -> None:
    module = make_module(tiny_policy(), lr=float("inf"))
    with pytest.raises(Diverged, match=r"(gradient is not finite|weights are not finite) at step \d.*lower optimizer\.lr"):
        fit(module, 8, [Divergence(DivergenceConfig(), Evaluation([0.0]))], clip=None)


class Breaks(L.Callback):
    """Makes the gradient NaN at some steps, and keeps the weights of after every step."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps
        self.weights: dict[int, torch.Tensor] = {}

    def on_after_backward(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.global_step + 1 in self.steps:
            next(p for p in module.parameters() if p.grad is not None).grad[0] = float("nan")

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        self.weights[trainer.global_step] = torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()


def test_a_step_with_a_broken_gradient_is_left_out_and_counted() -> None:
    breaks, callback = Breaks(2), Divergence(DivergenceConfig(), Evaluation([0.4] * 5))
    recorder = fit(make_module(tiny_policy()), 4, [breaks, callback])
    assert callback.skipped == 1
    assert all(w.isfinite().all() for w in breaks.weights.values())
    assert torch.equal(breaks.weights[1], breaks.weights[2])
    assert not torch.equal(breaks.weights[2], breaks.weights[3])
    assert "grad_norm" in recorder.rows[1]
    assert "grad_norm" not in recorder.rows[2]


class NeverFinite(Breaks):
    """In the steps from the first on, of a loss scaler, which skips them."""

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        trainer.strategy.precision_plugin.scaler = torch.amp.GradScaler("cpu")


def test_a_loss_scaler_that_skips_every_step_ends_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "MOST_SCALED_DOWN", 4)
    callback = Divergence(DivergenceConfig(max_skipped_steps=0), Evaluation([0.4] * 20))
    mixed = {"plugins": [MixedPrecision("bf16-mixed", "cpu")], "clip": None}
    fit(make_module(tiny_policy()), 8, [NeverFinite(1, 2, 3, 5, 6, 7), callback], **mixed)  # a scale may have to come down
    assert callback.skipped == 0
    with pytest.raises(Diverged, match=r"not finite at step 5 and 3 steps before it, whatever the scale.*optimizer\.lr"):
        fit(make_module(tiny_policy()), 8, [NeverFinite(2, 3, 4, 5), callback], **mixed)


def test_too_many_broken_gradients_end_training_also_over_a_resume(tmp_path: Path) -> None:
    save = ModelCheckpoint(tmp_path, filename="last", every_n_train_steps=2, save_top_k=1)
    fit(make_module(tiny_policy()), 2, [Breaks(1), Divergence(DivergenceConfig(), Evaluation([0.4] * 5)), save])
    config = DivergenceConfig(max_skipped_steps=1)
    again = [Breaks(4), Divergence(config, Evaluation([0.4] * 9))]
    with pytest.raises(Diverged, match=r"not finite at step 4, and more than divergence\.max_skipped_steps=1 steps were so"):
        fit(make_module(tiny_policy()), 6, again, ckpt_path=str(tmp_path / "last.ckpt"))
    with pytest.raises(ValueError, match=r"divergence\.max_skipped_steps"):
        DivergenceConfig(max_skipped_steps=-1)


@pytest.fixture
def study(tmp_path: Path) -> Ticket:
    """Three complete trials at 0.5, 0.6 and 0.7 at steps 2 and 4, and a fourth that is running."""
    import optuna

    storage = SweepStorage(tmp_path / "optuna.db")
    found = optuna.create_study(study_name="s", storage=storage, direction="maximize")
    for value in (0.5, 0.6, 0.7):
        x = {"params": {"x": value}, "distributions": {"x": UniformDistribution(0, 1)}}
        found.add_trial(create_trial(value=value, intermediate_values={2: value, 4: value}, **x))
    found.ask()
    return Ticket("s", 3, 1, {}, str(storage.path), pruning=Pruning(True, startup_trials=2, warmup_steps=3))


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_trial_below_the_median_ends_after_the_warm_up(study: Ticket) -> None:
    import optuna

    evaluation = Evaluation([0.4, 0.1, 0.1, 0.1, 0.55])
    callback = MedianPruning(study, evaluation)
    end_of_step(callback, evaluation, 2)  # 0.1, but within the warm-up
    with pytest.raises(Pruned, match=r"the accuracy 0\.550 at step 4 is worse than the median"):
        end_of_step(callback, evaluation, 4)
    trial = optuna.load_study("s", SweepStorage(study.storage)).trials[3]
    assert (trial.state, trial.intermediate_values) == (TrialState.RUNNING, {2: 0.1, 4: 0.55})


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_trial_above_the_median_and_one_at_its_end_go_on(study: Ticket) -> None:
    evaluation = Evaluation([0.4, 0.1, 0.1, 0.1, 0.65, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    callback = MedianPruning(study, evaluation)
    end_of_step(callback, evaluation, 4)
    end_of_step(callback, evaluation, 10)
    import optuna

    trial = optuna.load_study("s", SweepStorage(study.storage)).trials[3]
    assert (trial.state, trial.intermediate_values) == (TrialState.RUNNING, {4: 0.65}), "at its end nothing is left to prune"


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_resumed_trial_is_not_judged_again_where_it_stands(study: Ticket) -> None:
    import optuna

    evaluation = Evaluation([0.4, 0.1, 0.1, 0.1, 0.1])
    callback = MedianPruning(study, evaluation)
    trainer = evaluation.at(2)
    callback.on_train_start(trainer, None)
    callback.on_train_batch_end(trainer, None)  # the first of several passes of step 3
    with pytest.raises(Pruned, match="at step 4"):
        end_of_step(callback, evaluation, 4)
    assert optuna.load_study("s", SweepStorage(study.storage)).trials[3].intermediate_values == {4: 0.1}


class Pause(L.Callback):
    def on_train_batch_start(self, *_: Any) -> None:
        time.sleep(0.05)


def test_seconds_add_up_over_a_resume(tmp_path: Path) -> None:
    save = ModelCheckpoint(tmp_path, filename="last", every_n_train_steps=2, save_top_k=1)
    first = RunSeconds()
    fit(make_module(tiny_policy()), 2, [first, Pause(), save])
    before = first.totals()
    assert before["time/total_s"] > 2 * 0.05
    phases = [before[f"time/total_{phase}_s"] for phase in ("generate", "reward", "score", "logprobs", "update")]
    assert all(value >= 0 for value in phases)
    assert 0 < sum(phases) < before["time/total_s"]
    assert 0 < before["time/total_cpu_s"] < before["time/total_s"], "pauses are none of a processor's time"
    second = RunSeconds()
    recorder: Recorder = fit(make_module(tiny_policy()), 4, [second, Pause()], ckpt_path=str(tmp_path / "last.ckpt"))
    after = second.totals()
    assert after["time/total_s"] > before["time/total_generate_s"] + 4 * 0.05
    assert after["time/total_cpu_s"] > before["time/total_cpu_s"]
    for phase in ("generate", "update"):
        here = sum(row[f"time/{phase}_s"] for row in recorder.rows.values())
        assert after[f"time/total_{phase}_s"] == pytest.approx(before[f"time/total_{phase}_s"] + here)
