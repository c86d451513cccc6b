"""What implicit process rewards share: a model that learns outcomes, and when."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from support.toy import gpt2, rollouts_of, tools

from oar_lightning.credit.scorers import FunctionScorer, IStar, OarG, Prime, Shuffled
from oar_lightning.credit.scorers.implicit import ImplicitRewards
from oar_lightning.credit.scorers.implicit.base import outcome_rloo, pair_accuracy
from oar_lightning.credit.segments import FixedLength
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.tracking.metric_table import entries_of
from oar_lightning.types import Rollouts

KINDS: dict[str, Any] = {"prime": Prime, "istar": lambda **settings: IStar(FixedLength(2), **settings)}
every_kind = pytest.mark.parametrize("kind", KINDS)


def scorer(kind: str, **settings: Any) -> ImplicitRewards:
    made: ImplicitRewards = KINDS[kind](**settings)
    made.use(tools())
    return made


def told_by_a_token(seed: int) -> Rollouts:
    """Four groups of four; a completion is right where its second token is 8 (not 9), whatever is around it."""
    rng = torch.Generator().manual_seed(seed)
    sequences = [
        {
            "before": torch.randint(20, 40, (2,), generator=rng).tolist(),
            "reasoning": [int(torch.randint(20, 40, (1,), generator=rng)), 8 + i % 2, 12],
            "tail": [1],
        }
        for i in range(16)
    ]
    rewards = torch.tensor([1.0, 0.0] * 8)
    rollouts = rollouts_of(sequences, group_size=4, rewards=rewards, advantages=rewards * 2 - 1)
    with torch.no_grad():
        model = gpt2(dropout=0.0)
        known = token_logprobs(model, rollouts.token_ids, rollouts.attention_mask, rollouts.response_mask)[0]
    return rollouts_of(
        sequences, group_size=4, rewards=rewards, advantages=rewards * 2 - 1, old_logprobs=known, ref_logprobs=known
    )


@every_kind
def test_it_learns_which_completions_are_right(kind: str) -> None:
    """The loss falls, and completions that it has not seen are told apart; at the token that decides, too."""
    made, model, losses = scorer(kind, lr=3e-3, beta=0.5), gpt2(), []
    for seed in range(6):
        rollouts = told_by_a_token(seed)
        made.learn(model, rollouts)
        made(model, rollouts)
        losses.append(made.totals.means()["credit/implicit_loss"])
    assert losses[0] == pytest.approx(torch.log(torch.tensor(2.0)).item(), abs=1e-6)
    assert losses[-1] < 0.8 * losses[0]
    held_out = told_by_a_token(99)
    ratios = made._log_ratios(held_out)
    right = held_out.rewards == 1
    assert pair_accuracy(ratios.sum(1), held_out.rewards.double(), 4)[0] >= 14, "of 16 pairs"
    assert float(((ratios.sum(1) > 0) == right).double().mean()) >= 0.8
    assert ratios[right][:, 3].mean() > 0 > ratios[~right][:, 3].mean()


@every_kind
def test_a_completion_is_right_above_the_limit(kind: str) -> None:
    rewards = torch.tensor([0.5, 0.51, float("nan"), 0.0])
    labels = scorer(kind, right_above=0.5).labels(rollouts_of([{"before": [1], "answer": [2]}] * 4, rewards=rewards))
    assert labels.tolist() == pytest.approx([0.0, 1.0, float("nan"), 0.0], nan_ok=True)


@every_kind
def test_one_batch_one_step_and_an_evaluation_none(kind: str) -> None:
    made, model, rollouts = scorer(kind, lr=1e-3), gpt2(), told_by_a_token(0)
    made.learn(model, rollouts)
    assert made.own.steps == 1
    made(model, rollouts)
    logged = {*made.totals.means(), *(f"credit/{name}" for name in made.metrics)}
    assert logged == {f"credit/implicit_{name}" for name in ("loss", "accuracy", "grad_norm", "kept_frac")}
    assert all(len(entries_of(name)) == 1 for name in logged)
    before = made.own.logprobs(rollouts)
    made(model, rollouts)
    assert made.own.steps == 1
    assert made.totals.means() == {}, "what was learnt is told once"
    assert torch.equal(made.own.logprobs(rollouts), before)


@every_kind
def test_single_completions_of_an_evaluation(kind: str) -> None:
    """They have nothing to be compared with."""
    made = scorer(kind, lr=1e-3, **({"lowest": 0.0, "highest": 1.0} if kind == "prime" else {}))
    made.learn(gpt2(), told_by_a_token(0))
    made(gpt2(), told_by_a_token(0))
    single = dataclasses.replace(told_by_a_token(1).select(torch.tensor([3])), group_size=1)
    assert made(gpt2(), single).isfinite().all()


@every_kind
def test_saved_and_loaded_it_scores_and_learns_bit_for_bit(kind: str) -> None:
    whole, first, second = (scorer(kind, lr=1e-3) for _ in range(3))
    model = gpt2()
    for step in range(2):
        for made in (whole, *([first] if step < 1 else [])):
            made.learn(model, told_by_a_token(step))
            expected = made(model, told_by_a_token(step))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    other = gpt2(seed=5)  # the policy has moved on
    second.learn(other, told_by_a_token(1))
    assert torch.equal(second(other, told_by_a_token(1)), expected)
    second.use(tools(temperature=0.5))
    assert second.state_dict() == {}, "another run begins anew"
    assert second.own.temperature == 0.5


def test_outcomes_and_pairs() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.5, 1.0, torch.nan, 0.0, torch.nan, torch.nan, torch.nan])
    expected = [0.75, -0.75, 0.0, 0.75, 0.0, -0.75, 0.0, 0.0, 0.0]
    torch.testing.assert_close(outcome_rloo(rewards, 3), torch.tensor(expected, dtype=torch.float64))
    scores = torch.tensor([1.0, 2.0, 0.0, 3.0, 3.0, 3.0])
    labels = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, torch.nan])
    assert pair_accuracy(scores, labels, 3) == (1.5, 3.0)


def test_weights_too_coarse_to_be_trained_are_refused_when_a_run_is_put_together() -> None:
    with pytest.raises(ValueError, match="weights are float16"):
        Shuffled(scorer("prime")).check_model(gpt2().half())
    Shuffled(scorer("prime")).check_model(gpt2())


def test_what_is_wrapped_learns_too() -> None:
    made = Shuffled(scorer("prime", lr=1e-3))
    made.begin(gpt2())
    made.learn(gpt2(), told_by_a_token(0))
    assert made.inner.own.steps == 1
    assert made.only_in_training
    for idle in (OarG(), FunctionScorer(lambda model, rollouts: rollouts.token_ids.float())):
        idle.begin(None)
        idle.learn(None, told_by_a_token(0))
        assert not idle.only_in_training
