"""What every scorer owes its caller, whatever it computes."""

from __future__ import annotations

import copy
import dataclasses
import functools

import pytest
import torch
from support.toy import gpt2, padded, rollouts_of, tools

from oar_lightning.credit.scorers import (
    Entropy,
    FunctionScorer,
    InformationGain,
    Inverted,
    OarG,
    OarP,
    Position,
    ProbeSchedule,
    Random,
    Shuffled,
    TotalEffect,
    TotalEffectFast,
    Uniform,
    checked_scores,
)
from oar_lightning.credit.scorers.probes import PROBES
from oar_lightning.credit.segments import FixedLength
from oar_lightning.policy.language_model import evaluating, prediction_states


def information_gain(**knobs):
    scorer = InformationGain(FixedLength(2), absolute=True, **knobs)
    scorer.use(tools(encode=lambda before, text: ([36], [39])))
    return scorer


SCORERS = {
    "uniform": Uniform,
    "entropy": Entropy,
    "random": Random,
    "late": functools.partial(Position, "late"),
    "early": functools.partial(Position, "early"),
    "total_effect": functools.partial(TotalEffect, free_below=1.0),
    "total_effect_fast": TotalEffectFast,
    "oar_g-two-draws": functools.partial(OarG, num_draws=2),
    **{f"gain-{mode}": functools.partial(information_gain, mode=mode) for mode in ("gold", "own")},
    **{f"oar_p-{p}": functools.partial(OarP, ProbeSchedule(p)) for p in PROBES},
    **{f"oar_g-{p}": functools.partial(OarG, ProbeSchedule(p)) for p in PROBES},
    "shuffled-oar_g": lambda **kw: Shuffled(OarG(ProbeSchedule("answer_mean"), **kw)),
    "inverted-oar_p": lambda **kw: Inverted(OarP(ProbeSchedule("answer_mean"), **kw)),
}
BUDGETED = [name for name in SCORERS if "oar" in name or "gain" in name or "total" in name or name == "entropy"]
NEED_ANSWER = [name for name in BUDGETED if "oar" in name or "total" in name or name == "gain-own"]
KEEP_MORE = ("oar_p", "gain", "total")
"""Their clean pass leaves keys and values, or a graph, which prediction states do not give."""
SEQUENCES = [
    {"before": [3, 4, 5, 6], "reasoning": [8, 9, 10, 11, 12], "conclude": [11], "answer": [12, 13, 14], "tail": [1]},
    {"before": [14], "reasoning": [15, 16, 17, 18, 19, 20, 21], "answer": [22]},
    {"before": [23, 24], "reasoning": [25], "conclude": [26, 27], "answer": [28, 29], "tail": [31, 32]},
    {"before": [5, 6, 7], "reasoning": [33, 33, 34, 33, 35], "conclude": [36], "answer": [37, 38]},
]
INCOMPLETE = [
    {"before": [3, 4], "reasoning": [9, 10, 11]},  # no answer
    {"before": [5], "conclude": [6], "answer": [7, 8]},  # no reasoning
    {"before": [9, 1, 2], "tail": [12]},  # neither
]
ASK_ANYWAY = {"uniform", "entropy", "random", "late", "early", "gain-gold"}
"""Scorers that need no answer in the completion."""

every_scorer = pytest.mark.parametrize("name", SCORERS)


@pytest.fixture
def rollouts():
    return rollouts_of(SEQUENCES)


def assert_contract(importance, rollouts):
    assert importance.shape == rollouts.token_ids.shape
    assert importance.is_floating_point()
    assert importance.isfinite().all()
    assert (importance >= 0).all()
    assert not importance[~rollouts.reasoning_mask].any()
    assert not importance.requires_grad
    assert importance.grad_fn is None


@every_scorer
def test_shape_range_and_place(name, model64, rollouts):
    importance = SCORERS[name]()(model64, rollouts)
    assert_contract(importance, rollouts)
    if name != "uniform":
        spread = [importance[i, m].max() - importance[i, m].min() for i, m in enumerate(rollouts.reasoning_mask)]
        assert all(s > 1e-9 for i, s in enumerate(spread) if i != 2), "scores tell tokens apart"
        assert (importance[rollouts.reasoning_mask] > 0).all()


@every_scorer
def test_the_model_is_left_as_it_was(name, model64, rollouts):
    """Gradients (some set, some None), weights, requires_grad and a mixed training mode."""
    parameters = dict(model64.named_parameters())
    for i, parameter in enumerate(parameters.values()):
        if i % 3 == 0:
            parameter.grad = torch.randn_like(parameter)
        parameter.requires_grad_(i % 5 != 4)
    model64.transformer.h[1].eval()
    before = copy.deepcopy({n: (p.detach(), p.grad, p.requires_grad) for n, p in parameters.items()})
    modes = {n: m.training for n, m in model64.named_modules()}
    assert set(modes.values()) == {True, False}

    SCORERS[name]()(model64, rollouts)

    assert {n: m.training for n, m in model64.named_modules()} == modes
    for n, p in parameters.items():
        value, grad, requires_grad = before[n]
        assert torch.equal(p.detach(), value)
        assert p.requires_grad == requires_grad
        assert (p.grad is None and grad is None) or torch.equal(p.grad, grad), n


@every_scorer
def test_callers_grad_mode_does_not_matter(name, model64, rollouts):
    """Scoring runs inside and outside `no_grad`; it may not leak its own mode."""
    free = SCORERS[name]()(model64, rollouts)
    assert torch.is_grad_enabled()
    with torch.no_grad():
        guarded = SCORERS[name]()(model64, rollouts)
        assert not torch.is_grad_enabled()
    torch.testing.assert_close(guarded, free, rtol=0, atol=0)


@every_scorer
def test_deterministic_without_touching_the_global_generator(name, model64, rollouts):
    """Dropout is off while scoring, and the noise has its own generator."""
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = SCORERS[name]()(model64, rollouts)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    torch.testing.assert_close(SCORERS[name]()(model64, rollouts), first, rtol=0, atol=0)
    torch.testing.assert_close(SCORERS[name]()(model64.eval(), rollouts), first, rtol=0, atol=0)


@every_scorer
@pytest.mark.parametrize(
    ("left", "right"), [pytest.param(3, 0, marks=pytest.mark.slow), pytest.param(0, 4, marks=pytest.mark.slow), (2, 5)]
)
def test_padding_does_not_matter(name, left, right, model64, rollouts):
    expected = SCORERS[name]()(model64, rollouts)
    actual = SCORERS[name]()(model64, padded(rollouts, left, right))
    torch.testing.assert_close(actual[:, left : left + expected.shape[1]], expected, rtol=1e-7, atol=1e-12)


@every_scorer
def test_row_order_and_neighbours_do_not_matter(name, model64, rollouts):
    expected = SCORERS[name]()(model64, rollouts)
    order = torch.tensor([2, 0, 3, 1])
    turned = rollouts_of([SEQUENCES[i] for i in order])
    torch.testing.assert_close(SCORERS[name]()(model64, turned), expected[order], rtol=1e-7, atol=1e-12)
    for i, sequence in enumerate(SEQUENCES):
        alone = rollouts_of([sequence])
        actual = SCORERS[name]()(model64, alone)[alone.reasoning_mask]
        torch.testing.assert_close(actual, expected[i, rollouts.reasoning_mask[i]], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", BUDGETED)
@pytest.mark.parametrize("token_budget", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (50, 10**6))])
def test_token_budget_does_not_matter(name, token_budget, model64, rollouts):
    expected = SCORERS[name]()(model64, rollouts)
    actual = SCORERS[name](token_budget=token_budget)(model64, rollouts)
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in BUDGETED if not any(kind in n for kind in KEEP_MORE)])
def test_known_prediction_states_spare_a_pass_and_change_nothing(name, model64, rollouts):
    with evaluating(model64):  # no dropout
        states = prediction_states(model64, rollouts.attention_mask, rollouts.token_ids).detach()
    without, known = SCORERS[name](), SCORERS[name]()
    expected = without(model64, rollouts)
    actual = known(model64, dataclasses.replace(rollouts, prediction_states=states))
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-12)
    assert known.metrics["forward_equivalents"] < without.metrics["forward_equivalents"]


@pytest.mark.parametrize("name", [n for n in BUDGETED if n != "entropy"])
def test_equal_completions_are_scored_once(name, model64):
    once, twice = SCORERS[name](), SCORERS[name]()
    expected = once(model64, rollouts_of(SEQUENCES[:2]))
    three = rollouts_of([*SEQUENCES[:2], SEQUENCES[0]])
    actual = twice(model64, three)
    torch.testing.assert_close(actual, expected[[0, 1, 0]], rtol=1e-7, atol=1e-12)
    # the work is that of two rows, reported relative to the tokens of three
    tokens = three.attention_mask.sum(1).tolist()
    share = sum(tokens[:2]) / sum(tokens)
    assert twice.metrics["forward_equivalents"] == pytest.approx(once.metrics["forward_equivalents"] * share)


@pytest.mark.parametrize("name", [n for n in BUDGETED if n != "entropy"])
def test_work_is_relative_to_the_tokens_not_to_what_they_are_padded_with(name, model64):
    counts = []
    for columns in ({"left": 0, "right": 0}, {"left": 0, "right": 7}):
        scorer = SCORERS[name]()
        scorer(model64, padded(rollouts_of(SEQUENCES[:2]), **columns))
        counts.append(scorer.metrics["forward_equivalents"])
    assert counts[0] == counts[1]


@every_scorer
def test_rows_without_answer_or_reasoning(name, model64):
    """They score zero (some scorers need no answer) and change nothing for their neighbours."""
    mixed = rollouts_of([INCOMPLETE[0], SEQUENCES[0], INCOMPLETE[1], SEQUENCES[1], INCOMPLETE[2]])
    importance = SCORERS[name]()(model64, mixed)
    assert_contract(importance, mixed)
    if name in ASK_ANYWAY:
        assert name == "uniform" or (importance[0, mixed.reasoning_mask[0]] > 0).all()
    else:
        assert not importance[0].any()
    assert not importance[[2, 4]].any()
    whole = rollouts_of(SEQUENCES[:2])
    expected = SCORERS[name]()(model64, whole)
    for row, own in ((1, 0), (3, 1)):
        actual = importance[row, mixed.reasoning_mask[row]]
        torch.testing.assert_close(actual, expected[own, whole.reasoning_mask[own]], rtol=1e-7, atol=1e-12)


@every_scorer
def test_batch_without_a_scorable_row(name, model64):
    rollouts = rollouts_of(INCOMPLETE)
    importance = SCORERS[name]()(model64, rollouts)
    assert_contract(importance, rollouts)
    if name in NEED_ANSWER:
        assert not importance.any()


@pytest.mark.slow
@every_scorer
def test_scores_of_a_float32_model_follow_the_float64_ones(name, model64, rollouts):
    expected = SCORERS[name]()(model64, rollouts)
    actual = SCORERS[name]()(copy.deepcopy(model64).float(), rollouts)
    assert_contract(actual, rollouts)
    if "shuffled" not in name and "inverted" not in name:
        torch.testing.assert_close(actual.double(), expected.double(), rtol=2e-2, atol=2e-2 * float(expected.max()))


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("wrapper", [Shuffled, Inverted])
@pytest.mark.parametrize("inner", [OarP, OarG])
def test_controls_keep_each_rows_scores(wrapper, inner, probe, model64, rollouts):
    original = inner(ProbeSchedule(probe))(model64, rollouts)
    control = wrapper(inner(ProbeSchedule(probe)))(model64, rollouts)
    moved = 0
    for i, mask in enumerate(rollouts.reasoning_mask):
        torch.testing.assert_close(control[i, mask].sort().values, original[i, mask].sort().values, rtol=0, atol=0)
        moved += int((control[i, mask] != original[i, mask]).sum())
    assert moved > 8


def test_inverted_reverses_ranks(model64, rollouts):
    original = OarP()(model64, rollouts)
    inverted = Inverted(OarP())(model64, rollouts)
    for i, mask in enumerate(rollouts.reasoning_mask):
        ranks, reversed_ranks = (x[i, mask].argsort().argsort() for x in (original, inverted))
        assert (ranks + reversed_ranks == int(mask.sum()) - 1).all()


def test_inverted_puts_equal_scores_anywhere(model64):
    """Of scores of 0 and 1 it makes no control of the place."""
    long = {"before": [1], "reasoning": list(range(2, 34)), "answer": [30]}
    rollouts = rollouts_of([dict(long, before=[first]) for first in range(1, 9)])

    def last_two(model, rollouts):
        mask = rollouts.reasoning_mask
        return (mask & (mask.long().cumsum(1) > mask.sum(1, keepdim=True) - 2)).float()

    places = [Inverted(last_two, seed=seed)(model64, rollouts).nonzero()[:, 1] for seed in range(4)]
    assert all(len(found) == 16 for found in places)
    assert len(torch.cat(places).unique()) > 16
    assert not torch.equal(places[0], places[1])


def test_shuffled_depends_on_seed_step_and_tokens(model64):
    """A different order for each completion, fresh at every rollout."""
    long = {"before": [1], "reasoning": list(range(2, 26)), "answer": [30]}
    inner = Position("late")

    def order(sequence=long, step=0, seed=0):
        rollouts = rollouts_of([sequence], step=step)
        return Shuffled(inner, seed)(model64, rollouts)[rollouts.reasoning_mask].tolist()

    assert order() == order()
    assert order() != order(seed=1)
    assert order() != order(step=1)
    assert order() != order(long | {"answer": [31]})


def test_random_is_uniform_and_fresh(model64):
    sequence = {"before": [1], "reasoning": list(range(2, 32)), "answer": [30]}
    scores = torch.cat([Random()(model64, r)[r.reasoning_mask] for r in (rollouts_of([sequence], step=s) for s in range(20))])
    assert len(scores.unique()) > 590
    assert float(scores.mean()) == pytest.approx(0.5, abs=0.05)
    assert float(scores.std()) == pytest.approx(12**-0.5, abs=0.03)
    assert not torch.equal(Random(seed=1)(model64, rollouts_of([sequence])), Random()(model64, rollouts_of([sequence])))


def test_position_by_hand(model64):
    rollouts = rollouts_of([{"before": [1, 2], "reasoning": [3, 4, 5, 6], "answer": [7]}, {"before": [1], "reasoning": [3]}])
    assert Position("late")(model64, rollouts).tolist() == [[0, 0, 0.25, 0.5, 0.75, 1, 0], [0, 0, 1, 0, 0, 0, 0]]
    assert Position("early")(model64, rollouts).tolist() == [[0, 0, 1, 0.75, 0.5, 0.25, 0], [0, 0, 1, 0, 0, 0, 0]]
    with pytest.raises(ValueError, match=r"scorer\.favour must be one of late, early, got 'middle'"):
        Position("middle")


def test_entropy_is_that_of_the_distribution_each_token_was_drawn_from(rollouts):
    model = gpt2()
    importance = Entropy()(model, rollouts)
    model.eval()
    for i, sequence in enumerate(SEQUENCES):
        ids = sequence["before"] + sequence["reasoning"]
        with torch.no_grad():
            p = model(torch.tensor([ids])).logits[0].softmax(-1)
        expected = -(p * p.log()).sum(-1)[len(sequence["before"]) - 1 : -1]
        torch.testing.assert_close(importance[i, rollouts.reasoning_mask[i]], expected, rtol=0, atol=1e-11)


def test_a_plain_function_is_a_scorer(model64, rollouts):
    def backwards(model, rollouts):
        return Position("early")(model, rollouts)

    expected = Position("early")(model64, rollouts)
    assert torch.equal(FunctionScorer(backwards)(model64, rollouts), expected)
    late = Inverted(backwards)(model64, rollouts)
    torch.testing.assert_close(late, Position("late")(model64, rollouts), rtol=0, atol=1e-6)


def test_checked_scores_holds_a_plug_in_to_the_contract(rollouts):
    shape = rollouts.token_ids.shape
    for result, what in (
        (None, "None; return a torch tensor"),
        (torch.zeros(shape).numpy(), "a numpy.ndarray; return a torch tensor"),
        (torch.zeros(2, 3), r"shape \(2, 3\); return \[B S\]"),
        (torch.zeros(shape, dtype=torch.long), "a tensor of torch.int64; return floating-point numbers"),
    ):
        with pytest.raises(ValueError, match=f"scorer mine returned {what}"):
            checked_scores(result, rollouts, rollouts.reasoning_mask, "mine")
    with pytest.raises(ValueError, match=r"scorer mine returned a tensor with gradient"):
        checked_scores(torch.zeros(shape, requires_grad=True) * 2, rollouts, rollouts.reasoning_mask, "mine")
    checked = checked_scores(torch.ones(shape), rollouts, rollouts.reasoning_mask, "mine")
    assert torch.equal(checked, rollouts.reasoning_mask.float())
