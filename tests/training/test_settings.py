"""Settings in a program have the defaults of the command."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch
from support.composing import settings
from support.fixtures import TASK

from oar_lightning import (
    ChainProblems,
    ChainTask,
    Method,
    PlainPrompt,
    PretrainedPolicy,
    SamplingConfig,
    Settings,
    SupervisedConfig,
)
from oar_lightning.answers.reward import Accuracy, Rewards
from oar_lightning.common.config_check import ConfigError
from oar_lightning.credit.gates import SignedGate
from oar_lightning.data.curriculum import DifficultyCurriculum
from oar_lightning.data.listed import ListedProblems
from oar_lightning.data.mixture import Mixture
from oar_lightning.objective.entropy import AdaptiveEntropy
from oar_lightning.objective.loss import LossConfig
from oar_lightning.types import MathProblem


def test_weights_of_0_are_refused_where_nothing_else_teaches() -> None:
    rewards = Rewards({"accuracy": Accuracy()}, {"accuracy": 0.0})
    with pytest.raises(ConfigError, match=r"reward\.weights are 0 for all of \['accuracy'\]"):
        own(rewards=rewards).check_rl()
    for method in (Method(gate=SignedGate()), Method(loss=LossConfig(entropy_coef=0.1)), Method(loss=LossConfig(kl_coef=0.1))):
        own(rewards=rewards, method=method).check_rl()


def own(**changes: Any) -> Settings:
    return Settings(PretrainedPolicy("chain"), ChainProblems(TASK), {"chain": ChainProblems(TASK, "held_out")}, **changes)


def contents(value: Any) -> Any:
    """Class and contents, all the way down."""
    if isinstance(value, functools.partial):
        return contents(value.func)
    if isinstance(value, type | str | int | float | None):
        return value
    if isinstance(value, dict):
        return {key: contents(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [contents(inner) for inner in value]
    return type(value), contents(vars(value))


@pytest.mark.usefixtures("hydra_conf")
def test_defaults_are_those_of_the_command() -> None:
    ours = Settings(PretrainedPolicy("chain"), ChainProblems(ChainTask()), {"chain": ChainProblems(ChainTask(), "held_out")})
    theirs = settings()
    for spec in dataclasses.fields(Settings):
        if spec.name not in ("rewards", "optimizer"):
            assert contents(getattr(ours, spec.name)) == contents(getattr(theirs, spec.name)), spec.name
    assert ours.rewards.weights == {}
    assert {name for name, weight in theirs.rewards.weights.items() if weight} == set(ours.rewards.terms) == {"accuracy"}
    assert contents(ours.rewards.terms["accuracy"].verifier.config) == contents(
        theirs.rewards.terms["accuracy"].verifier.config
    )
    weights = [torch.nn.Parameter(torch.zeros(1))]
    assert contents(ours.optimizer(weights).defaults) == contents(theirs.optimizer(weights).defaults)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"prompt": PlainPrompt()}, "prompt is .*functools.partial"),
        ({"optimizer": "adam"}, "optimizer is 'adam'"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens must be >= 1, or null for no limit, got 0"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"decontaminate": "yes"}, "data.decontaminate must be true or false"),
        ({"policy": "chain"}, r"policy is the text 'chain'; give PretrainedPolicy\('chain'\)"),
        ({"train": [MathProblem("1 + 1", "2")]}, r"train is a list and no source of problems; give ListedProblems"),
        ({"eval_sets": ChainProblems(TASK)}, "eval_sets is a ChainProblems; give sources by name"),
        ({"eval_sets": {"test": [MathProblem("1 + 1", "2")]}}, r"eval_sets\['test'\] is a list and no source of problems"),
    ],
)
def test_bad_values_name_their_key(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        dataclasses.replace(own(), **changes)


def test_a_warm_start_may_sample_greedily_and_rl_may_not() -> None:
    greedy = own(method=Method(sampling=SamplingConfig(temperature=0)), supervised=SupervisedConfig())
    greedy.check()
    with pytest.raises(ConfigError, match=r"rollout\.temperature=0"):
        greedy.check_rl()


@pytest.mark.parametrize("top_p", [0.9, 1.0])
def test_a_nucleus_in_training_is_told(top_p: float, caplog: pytest.LogCaptureFixture) -> None:
    own(method=Method(sampling=SamplingConfig(top_p=top_p))).check_rl()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["rollout.top_p=0.9"] * (top_p < 1)


def test_two_entropy_terms_are_refused() -> None:
    own(method=Method(entropy=AdaptiveEntropy())).check()
    both = own(method=Method(entropy=AdaptiveEntropy(), loss=LossConfig(entropy_coef=0.1)))
    with pytest.raises(
        ConfigError, match=r"loss\.entropy_coef=0\.1 is constant, and AdaptiveEntropy adapts.* set loss\.entropy_coef=0"
    ):
        both.check()


def test_a_curriculum_by_level_asks_each_source_of_a_mixture() -> None:
    """The first problem of all may be of a source with levels, while those of another were one kind."""
    with_levels, without = ChainProblems(TASK), ListedProblems([MathProblem("1+1?", "2")])
    mixture = Mixture({"chain": with_levels, "plain": without}, {"chain": 1e6, "plain": 1.0})
    made = dataclasses.replace(own(), train=mixture)
    with pytest.raises(ConfigError, match=r"curriculum\.by=auto .* those of plain have none; set curriculum\.by=problem"):
        dataclasses.replace(made, curriculum=DifficultyCurriculum()).check()
    dataclasses.replace(made, curriculum=DifficultyCurriculum(by="problem")).check()


def test_all_parts_of_a_mixture_are_looked_at() -> None:
    """Whichever is drawn first: one part may have what another lacks, and what is wrong may be in any."""
    plain = ListedProblems([MathProblem("1 + 1", "2", id=str(i)) for i in range(3)])
    stated = ListedProblems([MathProblem("1 / 3", "0.33", id="a", extra={"error": 0.01})])
    wrong = ListedProblems([MathProblem("1 / 3", "0.33", id=i, extra={"error": e}) for i, e in (("a", 0.01), ("b", "x"))])
    rewards = Rewards({"accuracy": Accuracy(tolerance_column="error")})
    for sources in ({"one": plain, "two": stated}, {"one": stated, "two": plain}):
        dataclasses.replace(own(rewards=rewards), train=Mixture(sources, dict.fromkeys(sources, 1.0))).check()
    for sources in ({"one": plain, "two": wrong}, {"one": wrong, "two": plain}):
        with pytest.raises(ValueError, match="error"):
            dataclasses.replace(own(rewards=rewards), train=Mixture(sources, dict.fromkeys(sources, 1.0))).check()


def test_a_cap_of_the_samplers_ratio_needs_another_sampler(caplog: pytest.LogCaptureFixture) -> None:
    own().check()
    assert not caplog.messages
    own(method=Method(loss=LossConfig(sampler_ratio_cap=3.0))).check()
    (message,) = caplog.messages
    assert message.startswith("loss.sampler_ratio_cap=3.0: without effect, since the policy's own code samples")
