"""What a user of the shipped policy gets: approximate scores near exact ones, float32 scores near float64 ones."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hydra.utils import instantiate
from support.composing import composed
from support.fixtures import built_in_policy, make_stage

from oar_lightning.common.ranks import rank_correlation
from oar_lightning.credit.scorers import OarG, OarP, ProbeSchedule
from oar_lightning.credit.scorers.probes import PROBES
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.data.stream import ProblemStream
from oar_lightning.rollout import SamplingConfig


@pytest.fixture(scope="module")
def sampled():
    """The shipped policy and sixteen of its completions."""
    policy = built_in_policy()
    problems = ProblemStream(ChainProblems(ChainTask()), 0).take(8)
    rollouts = make_stage(policy)(policy.model, problems, 2, SamplingConfig(max_new_tokens=80), list(range(8)))
    assert (rollouts.answer_mask.any(1) & rollouts.reasoning_mask.any(1)).all()
    # the states that sampling left are float32
    return policy.model, dataclasses.replace(rollouts, prediction_states=None)


def mean(values):
    return sum(values) / len(values)


def correlation(expected, actual, rollouts):
    pairs = [(expected[i, m].numpy(), actual[i, m].numpy()) for i, m in enumerate(rollouts.reasoning_mask)]
    return mean([rank_correlation(*pair) for pair in pairs])


def recall(expected, actual, rollouts):
    """Of the top 10 % of each completion's tokens."""
    found = []
    for i, mask in enumerate(rollouts.reasoning_mask):
        count = max(1, round(0.1 * int(mask.sum())))
        top = [set(x[i, mask].topk(count).indices.tolist()) for x in (expected, actual)]
        found.append(len(top[0] & top[1]) / count)
    return mean(found)


@pytest.mark.usefixtures("hydra_conf")
def test_default_approximation_agrees_with_exact_scores(sampled):
    """reports/oar_p_agreement has the numbers; these bounds are somewhat below them."""
    model, rollouts = sampled
    approximate = instantiate(composed("scorer=oar_p_approximate").scorer)
    model.double()
    expected, actual = OarP()(model, rollouts), approximate(model, rollouts)
    assert correlation(expected, actual, rollouts) > 0.85
    assert recall(expected, actual, rollouts) > 0.85


@pytest.mark.parametrize("scorer", [OarP(), OarG()], ids=["oar_p", "oar_g"])
def test_float32_scores_rank_as_float64_ones(scorer, sampled):
    model, rollouts = sampled
    expected, actual = scorer(model.double(), rollouts), scorer(model.float(), rollouts)
    assert correlation(expected, actual, rollouts) > 0.995


@pytest.mark.parametrize("probe", sorted(PROBES))
def test_float16_holds_the_gradients_of_small_gaps(sampled, probe):
    """By noise of 1e-3 distributions move by about 1e-9 nats, whose gradient float16 took for 0: whole completions had one
    score, which the gate makes GRPO."""
    model, rollouts = sampled
    scorer, mask = OarG(ProbeSchedule(probe)), rollouts.reasoning_mask
    model.float()
    exact = scorer(model, rollouts)
    with torch.autocast("cpu", torch.float16, cache_enabled=False):
        scores = scorer(model, rollouts).float()
    assert (scores[mask] > 0).all()
    assert correlation(exact, scores, rollouts) > 0.85
