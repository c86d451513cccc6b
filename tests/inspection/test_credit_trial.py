"""What a run refuses of one's own scorer and gate before it begins, and what it says about scores without effect."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.fixtures import built_in_policy, make_stage
from torch import Tensor

from oar_lightning.common.config_check import ConfigError
from oar_lightning.credit.gates import BilevelGate, DirectGate, Gate, SignedGate, weighted
from oar_lightning.credit.scorers import Entropy, FunctionScorer, Inverted, Oracle, Scorer, Shuffled, Uniform, as_scorer
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.inspection.credit_trial import needs_trial, try_credit
from oar_lightning.types import CausalSpans, Credit, Rollouts

PROBLEM = ChainProblems(ChainTask(noise=0.0))[0]


def trial(scorer: Any, gate: Gate = BilevelGate()) -> None:
    policy = built_in_policy()
    try_credit(as_scorer(scorer), gate, policy, make_stage(policy), PROBLEM)


def ramp(model: Any, rollouts: Rollouts) -> Tensor:
    return rollouts.reasoning_mask.cumsum(1).float()


class OwnGate(Gate):
    """Returns what a function makes of a sound result."""

    def __init__(self, change: Callable[[Credit, Tensor], Any]) -> None:
        self.change = change

    def __call__(self, scores: Tensor, rollouts: Rollouts) -> Any:
        weights = torch.where(rollouts.reasoning_mask & scores.isfinite(), 1 + scores, 1.0)
        return self.change(weighted(scores, weights, rollouts), scores)


class OwnScorer(Scorer):
    """Returns what a function returns. (The suite checks shapes of this package's own functions earlier than a run does.)"""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, model: Any, rollouts: Rollouts) -> Any:
        return self.function(model, rollouts)


def changed(credit: Credit, **values: Any) -> Credit:
    """The credit with values that the suite would refuse as its maker's."""
    credit = copy.copy(credit)
    for name, value in values.items():
        object.__setattr__(credit, name, value)
    return credit


def refused(scorer: Any, gate: Gate = BilevelGate()) -> str:
    with pytest.raises(ConfigError) as caught:
        trial(scorer, gate)
    return str(caught.value)


def test_the_package_s_own_are_not_tried() -> None:
    assert not needs_trial(Entropy(), DirectGate())
    assert needs_trial(FunctionScorer(ramp), DirectGate())
    assert needs_trial(Oracle(locate=lambda problem, completion: None), BilevelGate())  # reads a task's texts
    assert needs_trial(Uniform(), OwnGate(lambda credit, scores: credit))


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda m, r: None, "returned None; return a torch tensor [B S] = (2, "),
        (lambda m, r: ramp(m, r)[:, 1:], "returned shape (2, "),
        (lambda m, r: r.token_ids, "returned a tensor of torch.int64; return floating-point numbers"),
        (lambda m, r: 1 / 0, "raised ZeroDivisionError: division by zero; correct it"),
    ],
)
def test_a_scorer_that_training_cannot_use(function: Callable[..., Any], told: str) -> None:
    message = refused(OwnScorer(function))
    assert message.startswith(f"scorer._target_={__name__}.OwnScorer, tried on two made-up completions: ")
    assert told in message


def test_a_scorer_that_leaves_gradients() -> None:
    def pushes(model: Any, rollouts: Rollouts) -> Tensor:
        model(rollouts.token_ids).logits.sum().backward()
        return ramp(model, rollouts)

    assert "it leaves gradients in the policy; use torch.autograd.grad" in refused(pushes)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_equal_scores_are_told_to_be_grpo(value: float, caplog: pytest.LogCaptureFixture) -> None:
    def equal(model: Any, rollouts: Rollouts) -> Tensor:
        return torch.full(rollouts.token_ids.shape, value)

    with caplog.at_level(logging.WARNING):
        trial(equal)
        (message,) = caplog.messages
        assert "all tokens before the answer get the same score; a run in which they always do is GRPO" in message
        trial(ramp)
    assert len(caplog.messages) == 1


def test_scores_that_are_all_nan_are_told_to_be_grpo(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trial(OwnScorer(lambda model, rollouts: torch.full(rollouts.token_ids.shape, torch.nan)))
    (message,) = caplog.messages
    assert "no score is a finite number, so that both count as not scored" in message
    assert "credit/invalid_frac at 1" in message


def test_a_scorer_within_another_is_tried_under_its_own_key() -> None:
    own = OwnScorer(lambda model, rollouts: torch.zeros(1))
    assert needs_trial(Shuffled(own), BilevelGate())
    assert not needs_trial(Shuffled(Entropy()), BilevelGate())
    assert refused(Shuffled(Inverted(own)), BilevelGate()).startswith(
        f"scorer.inner.inner._target_={__name__}.OwnScorer, tried"
    )
    trial(Shuffled(ramp))


def test_an_oracle_that_locates_nothing_in_made_up_texts_is_no_grpo(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trial(Oracle(locate=lambda problem, completion: CausalSpans(())))
    assert not caplog.messages


def test_a_scorer_without_the_base_s_init() -> None:
    class Plain(Scorer):
        def __init__(self, slope: float) -> None:
            self.slope = slope

        def __call__(self, model: Any, rollouts: Rollouts) -> Tensor:
            self.metrics["slope"] = self.slope
            return self.slope * ramp(model, rollouts)

    @dataclass
    class AsData(Plain):
        slope: float = 2.0

    for scorer in (Plain(2.0), AsData()):
        trial(scorer)
        assert scorer.metrics == {}  # what was made up is not counted
        assert scorer.left_out is None


def test_a_gate_that_keeps_its_promises() -> None:
    trial(Uniform(), OwnGate(lambda credit, scores: credit))
    seen: list[bool] = []

    class Signed(SignedGate):
        def __call__(self, scores: Tensor, rollouts: Rollouts) -> Credit:
            seen.append(bool((scores < 0).any()))
            return super().__call__(scores, rollouts)

    class SignedScorer(Entropy):
        signed = True

    trial(SignedScorer(), Signed())
    assert all(seen)
    assert seen


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c, s: c.advantages, "returned a Tensor; return oar_lightning.types.Credit, e.g. by weighted(...)"),
        (lambda c, s: None, "returned a NoneType; return oar_lightning.types.Credit"),
        (lambda c, s: changed(c, weights=c.weights[:1]), "returned weights of shape (1, "),
        (lambda c, s: changed(c, weights=None), "returned weights that is a NoneType; return a tensor [B S]"),
        (lambda c, s: changed(c, advantages=c.advantages.long()), "returned advantages of torch.int64"),
        (lambda c, s: changed(c, loss_mask=c.weights), "returned a loss_mask of torch.float32; return booleans"),
        (
            lambda c, s: changed(c, advantages=c.advantages.requires_grad_()),
            "returned advantages with gradient; return it detached",
        ),
        (lambda c, s: changed(c, advantages=c.advantages + 1), "returned advantages outside of completions"),
        (lambda c, s: 1 / 0, "raised ZeroDivisionError: division by zero; correct it"),
        (
            lambda c, s: changed(c, advantages=c.advantages * s.sum(1, keepdim=True)),
            ", the second of which could not be scored (its scores are NaN): gate OwnGate returned advantages that are not fin",
        ),
    ],
)
def test_a_gate_that_training_cannot_use(change: Callable[..., Any], told: str) -> None:
    message = refused(Uniform(), OwnGate(change))
    assert message.startswith(f"gate._target_={__name__}.OwnGate, tried on two made-up completions")
    assert told in message


def test_scores_below_zero_are_refused_but_for_rounding() -> None:
    with pytest.raises(ConfigError, match=r"a score is -\d.*importance is >= 0; take its size, .*signed = True.*gate=signed"):
        trial(OwnScorer(lambda model, rollouts: -ramp(model, rollouts) * rollouts.reasoning_mask))
    trial(OwnScorer(lambda model, rollouts: (ramp(model, rollouts) - 1 - 1e-6) * rollouts.reasoning_mask))
    signed = OwnScorer(lambda model, rollouts: -ramp(model, rollouts) * rollouts.reasoning_mask)
    signed.signed = True
    trial(signed, SignedGate())


@pytest.mark.parametrize(("covers", "told"), [("reasoning", True), ("response", False)])
def test_scores_that_are_not_used_are_told(covers: Any, told: bool, caplog: pytest.LogCaptureFixture) -> None:
    scorer = OwnScorer(lambda model, rollouts: ramp(model, rollouts) * rollouts.response_mask)
    scorer.covers = covers
    trial(scorer)
    assert ("scores outside of rollouts.reasoning_mask are not used" in caplog.text) == told


def test_a_problem_without_a_gold_answer_has_tokens_to_score(caplog: pytest.LogCaptureFixture) -> None:
    """As recorded completions may have. Its made-up completions state some answer."""
    policy, problem = built_in_policy(), dataclasses.replace(PROBLEM, answer="")
    with caplog.at_level(logging.WARNING):
        try_credit(as_scorer(ramp), BilevelGate(), policy, make_stage(policy), problem)
    assert not caplog.messages
