"""A decision known by construction: estimators of influence find it, controls do not; and what an estimate is made of."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.relays import END, NAMES, relaying_policy, relays
from support.toy import tools

from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.component import group_advantages_of
from oar_lightning.credit.freedom import FREE_BELOW
from oar_lightning.credit.gates import BilevelGate, SelectGate, SignedGate
from oar_lightning.credit.scorers import (
    Entropy,
    FunctionScorer,
    InformationGain,
    MonteCarlo,
    OarG,
    OarP,
    OarPApproximate,
    Position,
    Random,
    Scorer,
    Shuffled,
    TotalEffect,
    TotalEffectFast,
)
from oar_lightning.credit.scorers.probes import ProbeSchedule
from oar_lightning.credit.segments import FixedLength
from oar_lightning.lab.controls import Improbability, IsDigit
from oar_lightning.lab.estimators import Estimator, estimate
from oar_lightning.lab.measures import measures_of
from oar_lightning.lab.truth import around_free, monte_carlo
from oar_lightning.lab.types import Studied, Truth
from oar_lightning.types import Continued, Prefix, Rollouts

DECISION, RESTATED = 2, 4


def continued(
    model: Any, rollouts: Rollouts, prefixes: Sequence[Prefix], samples: int, seed: int, greedy: bool = False
) -> Continued:
    """What any number of continuations would say: one in four succeeds before the decision; after it, all or none."""
    values = [float(rollouts.rewards[row]) if column > DECISION else 0.25 for row, column in prefixes]
    return Continued(torch.tensor(values)[:, None].expand(-1, samples), len(prefixes) * samples, 0)


def encode(before: str, text: str) -> tuple[list[int], list[int]]:
    return [NAMES.index(c) for c in before if c in NAMES], [NAMES.index(text)] if text else []


def studied(rollouts: Rollouts, model: Any) -> Studied:
    logprobs = model(rollouts.token_ids).logits[:, :-1].log_softmax(-1).detach()
    p = torch.nn.functional.pad(logprobs.gather(2, rollouts.token_ids[:, 1:, None])[..., 0].exp(), (1, 0))
    entropy = torch.nn.functional.pad(-(logprobs.exp() * logprobs).sum(-1), (1, 0))
    rows = range(len(rollouts))
    return Studied(
        rollouts=rollouts,
        problem=tuple(rows),
        ids=tuple(map(str, rows)),
        correct=tuple(bool(r) for r in rollouts.rewards),
        probabilities=p * rollouts.response_mask,
        entropy=entropy * rollouts.response_mask,
        free=rollouts.reasoning_mask & (p < FREE_BELOW),
    )


def truth_of(lab: Studied) -> Truth:
    prefixes = around_free(lab)
    drawn = continued(None, lab.rollouts, prefixes, 4, 0).rewards.double().numpy()
    return monte_carlo(lab, dict(zip(prefixes, drawn, strict=True)), decisive=0.2)


def asked(scorer: Scorer, lab: Studied, model: Any) -> dict[str, float]:
    """Means of the measures of one estimator against the values' truth."""
    gate = SignedGate(region=scorer.covers) if scorer.signed else BilevelGate()
    estimator = Estimator("it", scorer, gate)
    estimator.use(tools(continuations=continued, encode=encode))
    measures = measures_of(truth_of(lab), [estimate(estimator, model, lab)], lab)
    return {m.key.partition(".")[2]: sum(m.values["it"]) / len(m.values["it"]) for m in measures}


INFLUENCE: dict[str, Callable[[], Scorer]] = {
    "oar_g": functools.partial(OarG, freedom="weight"),
    "oar_p": functools.partial(OarP, fill_token_id=END, freedom="weight"),
    "oar_p_approximate": functools.partial(OarPApproximate, freedom="weight"),
    "total_effect": functools.partial(TotalEffect, num_draws=4),
    "total_effect_fast": TotalEffectFast,
    "information_gain": functools.partial(InformationGain, FixedLength(1), absolute=True),
    "monte_carlo": functools.partial(MonteCarlo, FixedLength(1), samples=2),
}
CONTROLS: dict[str, Callable[[], Scorer]] = {
    "random": Random,
    "late": functools.partial(Position, "late"),
    "early": functools.partial(Position, "early"),
    "entropy": Entropy,
    "improbability": Improbability,
    "is_digit": IsDigit,
    "shuffled": lambda: Shuffled(OarG()),
}


@pytest.fixture(scope="module")
def direct() -> tuple[Studied, Any]:
    model = relaying_policy(relayed=False)
    return studied(relays(24), model), model


@pytest.fixture(scope="module")
def relayed() -> tuple[Studied, Any]:
    model = relaying_policy()
    return studied(relays(24), model), model


def test_the_truth_is_the_decision(relayed: tuple[Studied, Any]) -> None:
    truth = truth_of(relayed[0])
    assert truth.decisive.nonzero()[:, 1].tolist() == [DECISION] * 24
    assert truth.values is not None
    assert truth.values[:2, DECISION].tolist() == [0.75, -0.25]
    assert not bool(relayed[0].free[:, RESTATED].any()), "what is copied is not free"


@pytest.mark.parametrize("name", INFLUENCE)
def test_estimators_of_influence_rank_the_decision_first(name: str, direct: tuple[Studied, Any]) -> None:
    found = asked(INFLUENCE[name](), *direct)
    assert found["r_precision"] == found["auroc"] == found["auroc_free"] == 1.0


@pytest.mark.parametrize("name", CONTROLS)
def test_controls_do_not(name: str, direct: tuple[Studied, Any]) -> None:
    found = asked(CONTROLS[name](), *direct)
    assert found["r_precision"] < 0.5
    assert found["auroc_free"] < 0.75


@pytest.mark.parametrize(
    ("name", "finds"),
    [("total_effect", True), ("total_effect_fast", True), ("monte_carlo", True), ("oar_p", False), ("oar_g", False)],
)
def test_a_restated_decision(name: str, finds: bool, relayed: tuple[Studied, Any]) -> None:
    """The answer is read from the restatement: with the rest fixed the decision changes nothing."""
    found = asked(INFLUENCE[name](), *relayed)
    assert (found["r_precision"] == 1.0) == finds


def test_signed_estimates_tell_the_direction(direct: tuple[Studied, Any]) -> None:
    found = asked(INFLUENCE["monte_carlo"](), *direct)
    assert found["sign"] == found["direction_free"] == 1.0


def test_an_estimate_is_the_scorers_and_the_gates(direct: tuple[Studied, Any]) -> None:
    lab, model = direct
    scorer, gate = OarG(), BilevelGate()
    found = estimate(Estimator("it", scorer, gate, control=True), model, lab)
    scores = scorer(model, lab.rollouts)
    torch.testing.assert_close(found.scores.double(), scores.double(), rtol=1e-5, atol=1e-8)
    expected = gate(found.scores, lab.rollouts).advantages
    torch.testing.assert_close(found.advantages, expected)
    assert found.control
    assert found.loss_mask is None
    assert found.forward_equivalents == pytest.approx(scorer.metrics["forward_equivalents"])
    masked = estimate(Estimator("it", Entropy(region="response"), SelectGate(share=0.25)), model, lab)
    assert masked.loss_mask is not None
    assert 0 < int(masked.loss_mask.sum()) < int(lab.rollouts.response_mask.sum())


def test_the_lab_studies_the_probe_after_its_warm_up() -> None:
    warming = OarG(probe=ProbeSchedule("answer_mean", "last", 50))
    for scorer, place in ((warming, lambda e: e.scorer), (Shuffled(warming), lambda e: e.scorer.inner)):
        found = place(Estimator("it", scorer, BilevelGate()).after_warmup())
        assert found.probe == ProbeSchedule("answer_mean", "last", 0)
    assert warming.probe.warmup_steps == 50
    plain = Estimator("it", OarG(), BilevelGate())
    assert plain.after_warmup().scorer is plain.scorer


def test_only_what_draws_is_asked_again(direct: tuple[Studied, Any]) -> None:
    lab, model = direct
    drawing = [Random(), OarG(), Shuffled(Position(), seed=3)]
    still = [Position(), OarP(fill_token_id=END), FunctionScorer(lambda model, r: r.reasoning_mask.float())]
    for scorer in [*drawing, *still]:
        seed = getattr(scorer, "seed", None)
        found = estimate(Estimator("it", scorer, BilevelGate()), model, lab)
        assert (found.again is not None) == (scorer in drawing), scorer.name
        assert getattr(scorer, "seed", None) == seed


def test_problems_are_scored_apart_where_they_are_read_together(direct: tuple[Studied, Any]) -> None:
    lab, model = direct
    lab = dataclasses.replace(lab, problem=tuple(row // 3 for row in range(24)))
    seen = []

    class Groups(Scorer):
        reads_groups = True

        def __call__(self, model: Any, rollouts: Rollouts) -> torch.Tensor:
            seen.append((len(rollouts), rollouts.group_size, group_advantages_of(rollouts).tolist()))
            return rollouts.reasoning_mask.float() * len(seen)

    found = estimate(Estimator("it", Groups(), BilevelGate()), model, lab)
    assert [(n, size) for n, size, _ in seen] == [(3, 3)] * 8
    assert [a for _, _, part in seen for a in part] == group_advantages_of(lab.rollouts).tolist()
    assert found.scores[:, DECISION].tolist() == [1 + row // 3 for row in range(24)]


@pytest.mark.parametrize("reads_groups", [True, False])
@pytest.mark.parametrize("combine", ["add", "replace"])
def test_problems_of_equal_rewards_have_token_advantages_where_training_gives_them_some(
    combine: Any, reads_groups: bool, direct: tuple[Studied, Any]
) -> None:
    """Held against `assign_credit` on each problem's completions, as training calls it."""
    lab, model = direct
    advantages = torch.tensor([0.0] * 6 + [1.0, 0.0, -1.0] * 6)  # one of the middle has the mean reward, and its group has not
    rollouts = dataclasses.replace(lab.rollouts, advantages=advantages)
    lab = dataclasses.replace(lab, rollouts=rollouts, problem=tuple(row // 3 for row in range(24)))
    gate = SignedGate(combine=combine)

    class Scores(Scorer):
        signed = True

        def __call__(self, model: Any, rollouts: Rollouts) -> torch.Tensor:
            self.left_out = rollouts.reasoning_mask & (rollouts.token_ids == NAMES.index("a"))
            return rollouts.reasoning_mask * 0.3

    Scores.reads_groups, Scores.masks_loss = reads_groups, True
    for reads_all, silent in ((False, 6), (True, 0)):
        Scores.reads_all_rows = reads_all
        found = estimate(Estimator("it", Scores(), gate), model, lab)
        trained = assign_credit(model, dataclasses.replace(rollouts, group_size=3), Scores(), gate)
        assert found.advantages.any(1).tolist() == [row >= silent for row in range(24)]
        torch.testing.assert_close(found.advantages, trained.advantages)
        assert found.loss_mask is not None
        assert torch.equal(found.loss_mask, trained.loss_mask)
        assert found.scores.any(1).all()


def test_a_problem_without_any_score_does_not_tell_what_draws(direct: tuple[Studied, Any]) -> None:
    """A Monte-Carlo value of a problem that nobody solves is 0 whatever is drawn."""
    lab, model = direct
    assert len(set(lab.problem)) > 1

    class Hopeless(Random):
        def __call__(self, model: Any, rollouts: Rollouts) -> torch.Tensor:
            scores = super().__call__(model, rollouts)
            first = torch.tensor([problem.question == lab.rollouts.problems[0].question for problem in rollouts.problems])
            return scores.masked_fill(first[:, None], 0.0)

    assert estimate(Estimator("it", Hopeless(), BilevelGate()), model, lab).again is not None
