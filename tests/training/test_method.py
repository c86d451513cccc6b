"""Combinations of a method's parts that cannot work or would silently do something else."""

from __future__ import annotations

import dataclasses

import pytest

from oar_lightning.common.config_check import ConfigError
from oar_lightning.credit.gates import BilevelGate, ClipGate, DirectGate, Gate, SignedGate
from oar_lightning.credit.scorers import (
    Entropy,
    OarG,
    OarP,
    ProbeSchedule,
    Scorer,
    Shuffled,
    TotalEffect,
    TotalEffectFast,
    TurningPoint,
    Uniform,
)
from oar_lightning.credit.scorers.forward_free import EntropyAdvantage, Hicra, Ktae, Shear
from oar_lightning.credit.scorers.forward_free.baseline import Otb
from oar_lightning.credit.scorers.hindsight import Contrast
from oar_lightning.credit.scorers.spae import Spae
from oar_lightning.credit.scorers.spro import Spro
from oar_lightning.credit.segments import Sentences
from oar_lightning.objective.advantage import AdvantageConfig
from oar_lightning.objective.entropy import AdaptiveEntropy
from oar_lightning.objective.loss import LossConfig
from oar_lightning.training.method import Method, check_clipping, check_credit, check_entropy
from oar_lightning.training.slots import UpdatePlan

NO_WARMUP = "scorer.probe.warmup_steps=0"


def test_advantages_that_a_gate_replaces_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    check_credit(Method(Otb(), SignedGate()))
    assert not caplog.messages
    check_credit(Method(Otb(), SignedGate(), advantage=AdvantageConfig(confidence_from=0.5)))
    assert "advantage.confidence_from=0.5" in caplog.text


def test_settings_of_a_gate_that_has_nothing_to_weigh_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    check_credit(Method(Uniform(), BilevelGate()))
    check_credit(Method(Entropy(), BilevelGate(tau=0.9)))
    assert not caplog.messages
    check_credit(Method(Uniform(), BilevelGate(tau=0.9, beta=3.0)))
    assert "gate.beta=3.0, gate.tau=0.9: without effect, since scorer=uniform" in caplog.text


@pytest.mark.parametrize(
    ("scorer", "gate", "setting", "why"),
    [
        (
            OarP(freedom="weight", free_below=0.5),
            BilevelGate(),
            "scorer.free_below=0.5",
            "scorer.freedom=weight",
        ),
        (OarG(free_below=0.5), BilevelGate(), "scorer.free_below=0.5", "scorer.freedom=none"),
        (TotalEffectFast(free_below=0.5), BilevelGate(), "scorer.free_below=0.5", "scorer.freedom=weight"),
        (
            Shuffled(OarG(free_below=0.5)),
            BilevelGate(),
            "scorer.inner.free_below=0.5",
            "scorer.inner.freedom=none",
        ),
        (Shear(epsilon=0.1), DirectGate(), "scorer.epsilon=0.1", "scorer.distance=mmd"),
        (TurningPoint(guess_above=0.5), BilevelGate(), "scorer.guess_above=0.5", "scorer.search_every=1"),
        (TurningPoint(rounds=0, points=7), BilevelGate(), "scorer.points=7", "scorer.rounds=0"),
        (
            OarG(num_draws=2, stability_rows=8),
            BilevelGate(),
            "scorer.stability_rows=8",
            "scorer.num_draws > 1, which has draws to compare",
        ),
        (OarG(ProbeSchedule(warmup="answer_joint")), BilevelGate(), "scorer.probe.warmup=answer_joint", NO_WARMUP),
        (OarP(ProbeSchedule(warmup="answer_joint")), BilevelGate(), "scorer.probe.warmup=answer_joint", NO_WARMUP),
        (
            TotalEffect(fill="pad", num_draws=4),
            BilevelGate(),
            "scorer.num_draws=4",
            "scorer.fill=pad, which is the same in each draw",
        ),
        (Entropy(), BilevelGate(mode="boost_only", floor=0.5), "gate.floor=0.5", "gate.mode=boost_only"),
        (
            Entropy(),
            BilevelGate(mode="suppress_only", beta=1.0),
            "gate.beta=1.0",
            "gate.mode=suppress_only",
        ),
        (Entropy(), BilevelGate(mode="off", tau=0.9), "gate.tau=0.9", "gate.mode=off"),
    ],
)
def test_settings_of_scorer_and_gate_that_nothing_reads_are_told_of(
    scorer: Scorer, gate: Gate, setting: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_credit(Method(scorer, gate))
    assert caplog.messages == [f"{setting}: without effect, since {why}; leave it out"]


def test_settings_of_scorer_and_gate_that_are_read_are_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    for scorer in (
        OarP(freedom="mask", free_below=0.5),
        TotalEffect(free_below=0.5),
        TurningPoint(search_every=8, guess_above=0.5),
        OarG(ProbeSchedule(warmup="answer_joint", warmup_steps=3), stability_rows=8),
        TotalEffect(num_draws=4),
    ):
        check_credit(Method(scorer, BilevelGate(tau=0.5, beta=1.0, floor=0.2)))
    assert not caplog.messages


def test_settings_of_the_loss_that_nothing_reads_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    read = LossConfig(kl_coef=0.1, kl_from=0.5, kl_bias_correction=True), LossConfig(surrogate="cispo", ratio_cap=2.0)
    for loss in (LossConfig(), *read):
        check_credit(Method(Uniform(), BilevelGate(), loss=loss))
    assert not caplog.messages
    check_credit(Method(Uniform(), BilevelGate(), loss=LossConfig(ratio_cap=2.0, kl_from=0.5)))
    assert caplog.messages == [
        "loss.ratio_cap=2.0: without effect, since loss.surrogate=clip; leave it out",
        "loss.kl_from=0.5: without effect, since loss.kl_coef=0; leave it out",
    ]
    caplog.clear()
    check_credit(Method(Uniform(), BilevelGate(), loss=LossConfig(surrogate="cispo", clip_high=0.9)))
    why = "loss.surrogate=cispo, whose bound is loss.ratio_cap"
    assert caplog.messages == [f"loss.clip_high=0.9: without effect, since {why}; leave it out"]


def test_steps_that_nothing_tells_apart_are_refused() -> None:
    explore = AdaptiveEntropy(steps="explore")
    with pytest.raises(ConfigError, match=r"entropy\.steps=explore tells steps apart .* scorer=uniform scores 0 everywhere"):
        check_entropy(Method(Uniform(), BilevelGate(), entropy=explore))
    with pytest.raises(
        ConfigError, match=r"gate\.advantages=positive leaves scores to those of one sign; set gate\.advantages=both"
    ):
        check_entropy(Method(Entropy(), BilevelGate(advantages="positive"), entropy=explore))
    check_entropy(Method(Entropy(), BilevelGate(), entropy=explore))


def test_a_function_is_no_gate() -> None:
    with pytest.raises(ConfigError, match=r"gate is a function; a gate subclasses oar_lightning\.credit\.gates\.Gate"):
        check_credit(Method(Otb(), gate=lambda scores, rollouts: scores))  # type: ignore[arg-type]


@pytest.mark.parametrize("scorer", [EntropyAdvantage(), Hicra(), Ktae(), Spro(), Spae(Sentences()), Contrast()])
def test_what_is_to_be_added_is_not_put_in_the_place_of_advantages(scorer: Scorer) -> None:
    with pytest.raises(ConfigError, match=rf"scorer {type(scorer).__name__} gives what is to be added .* gate\.combine=add"):
        check_credit(Method(scorer, SignedGate()))
    check_credit(Method(scorer, SignedGate(combine="add", region=scorer.covers)))


def test_clip_bounds_that_never_act_are_refused() -> None:
    method = Method(Entropy(region="response"), ClipGate())
    with pytest.raises(ConfigError, match=r"ClipGate .* it would be plain GRPO; set update\.minibatches=2, or loss\.kl_coef"):
        check_clipping(method)
    check_clipping(dataclasses.replace(method, update=UpdatePlan(minibatches=2)))
    check_clipping(dataclasses.replace(method, loss=LossConfig(kl_coef=0.1)))
    check_credit(method)  # as the lab does, which has no updates


def test_bounds_of_ratios_that_are_all_1_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    for loss in (LossConfig(), LossConfig(clip_low=0.1, clip_high=0.28, ratio_max=3.0), LossConfig(ratio="sequence_token")):
        check_clipping(Method(loss=loss, update=UpdatePlan(minibatches=2)))
    check_clipping(Method())
    check_clipping(Method(loss=LossConfig(ratio_cap=3.0)))  # of a surrogate that has none, which check_credit tells
    assert not caplog.messages
    check_clipping(Method(loss=LossConfig(ratio="sequence", clip_high=0.28)))
    (message,) = caplog.messages
    assert message.startswith("loss.ratio=sequence loss.clip_high=0.28: without effect, since one optimizer step for each")
    assert message.endswith("set update.minibatches=2, or leave it out")


def test_a_cap_below_the_bound_of_a_gate_is_refused() -> None:
    scorer, gate, plan = Entropy(region="response"), ClipGate(clip_high=0.5), UpdatePlan(minibatches=2)
    method = Method(scorer, gate, loss=LossConfig(ratio_max=1.5), update=plan)
    with pytest.raises(ConfigError, match=r"loss\.ratio_max=1\.5 must be greater than 1 \+ gate\.clip_high, .*=0\.5: no ratio"):
        check_clipping(method)
    check_clipping(dataclasses.replace(method, loss=LossConfig(ratio_max=1.6)))


def test_two_references_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"loss\.kl_from=0\.5 compares with .* scorer Spro .* set loss\.kl_from=0"):
        check_credit(Method(Spro(), loss=LossConfig(kl_coef=0.1, kl_from=0.5)))
