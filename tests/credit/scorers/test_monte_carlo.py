"""Monte-Carlo step advantages: telescoping, limits, and agreement with sampling by hand."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.fixtures import LengthReward, make_module, make_stage, tiny_policy
from support.toy import gpt2, rollouts_of, tools

from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import DirectGate, SignedGate
from oar_lightning.credit.scorers import MinForm, MonteCarlo, Position, Shuffled
from oar_lightning.credit.segments import EntropyCuts, FixedLength, LowProbabilityCuts, Refined, Sentences, reasoning_or_all
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.objective.metric_sums import MetricSums
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.rollout import SamplingConfig
from oar_lightning.rollout.continuations import RolloutTools
from oar_lightning.types import Continued, MathProblem, Prefix, Rollouts

SEQUENCES = [
    {"before": [3, 4, 5, 6], "reasoning": [8, 9, 10, 11, 12], "conclude": [11], "answer": [12, 13]},
    {"before": [3, 4, 5, 6], "reasoning": [15, 16], "answer": [22]},
    {"before": [23, 24], "reasoning": [25, 26, 27], "answer": [28], "tail": [31, 32]},
    {"before": [23, 24], "tail": [33, 34, 35]},
]
REWARDS = [1.0, 0.0, 0.5, 0.0]


class Table:
    """Continuations whose rewards are a known function of the prefix."""

    def __init__(self) -> None:
        self.prefixes: list[Prefix] = []

    @staticmethod
    def value(rollouts: Rollouts, prefix: Prefix) -> float:
        before = rollouts.token_ids[prefix.row, : prefix.column][rollouts.attention_mask[prefix.row, : prefix.column]]
        return float(before.sum() % 17) / 17

    def __call__(self, model: Any, rollouts: Rollouts, prefixes: Sequence[Prefix], samples: int, seed: int) -> Continued:
        self.prefixes = list(prefixes)
        values = torch.tensor([self.value(rollouts, prefix) for prefix in prefixes])
        noise = torch.linspace(-0.1, 0.1, samples)
        return Continued(values[:, None] + noise, len(prefixes) * samples, 0)


def scorer_with(table: Table, *args: Any, **knobs: Any) -> MonteCarlo:
    scorer = MonteCarlo(*args, **knobs)
    scorer.use(tools(table))
    return scorer


@pytest.fixture
def rollouts() -> Rollouts:
    found = rollouts_of(SEQUENCES, group_size=2, rewards=torch.tensor(REWARDS))
    return dataclasses.replace(found, advantages=torch.tensor([1.0, -1.0, 0.0, 0.0]))


def by_hand(rollouts: Rollouts, row: int, length: int) -> list[float]:
    """The advantages of a row's response tokens, segment by segment."""
    columns = rollouts.response_mask[row].nonzero().flatten().tolist()
    count = int(rollouts.reasoning_mask[row].sum()) or len(columns)
    places = list(range(0, count, length))
    values = [Table.value(rollouts, Prefix(row, columns[p])) for p in places] + [float(rollouts.rewards[row])]
    return [
        values[min(i // length, len(places) - 1) + 1] - values[min(i // length, len(places) - 1)] for i in range(len(columns))
    ]


@pytest.mark.parametrize("length", [1, 2, 3, 9])
def test_advantages_are_differences_of_values(length: int, rollouts: Rollouts) -> None:
    table = Table()
    scores = scorer_with(table, FixedLength(length), samples=3)(None, rollouts)
    for row in range(4):
        assert scores[row, rollouts.response_mask[row]].tolist() == pytest.approx(by_hand(rollouts, row, length), abs=1e-6)
    assert not scores[~rollouts.response_mask].any()


def test_each_step_of_a_run_draws_anew(rollouts: Rollouts) -> None:
    seeds = []

    class Drawn(Table):
        def __call__(self, model: Any, rollouts: Rollouts, prefixes: Sequence[Prefix], samples: int, seed: int) -> Continued:
            seeds.append(seed)
            return super().__call__(model, rollouts, prefixes, samples, seed)

    scorer = scorer_with(Drawn(), FixedLength(2), seed=5)
    for step in (0, 7):
        scorer(None, dataclasses.replace(rollouts, step=step))
    assert seeds == [5, 12]


@pytest.mark.parametrize("length", [1, 2, 9])
def test_the_advantages_of_segments_sum_to_reward_minus_value_of_the_prompt(length: int, rollouts: Rollouts) -> None:
    table = Table()
    scorer = scorer_with(table, FixedLength(length))
    scores, (starts, _) = scorer(None, rollouts), scorer.starts(None, rollouts)
    for row in range(4):
        first = int(rollouts.response_mask[row].nonzero()[0])
        expected = REWARDS[row] - Table.value(rollouts, Prefix(row, first))
        assert float(scores[row, starts[row]].sum()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_later_values_are_the_reward_as_where_all_are_estimated_so(most: int, rollouts: Rollouts) -> None:
    """VinePPO's code fills them backwards: V_k = r + V_{k+1} with no r but the last, R."""
    table = Table()
    scorer = scorer_with(table, FixedLength(1), most_segments=most)
    steps = scorer.steps(None, rollouts)
    assert len(table.prefixes) == int(reasoning_or_all(rollouts).sum(1).clamp(max=most).sum())
    for row in range(4):
        columns = rollouts.response_mask[row].nonzero().flatten().tolist()
        divided = reasoning_or_all(rollouts)[row].nonzero().flatten().tolist()  # the rest belongs to the last segment
        values = [Table.value(rollouts, Prefix(row, c)) if k < most else REWARDS[row] for k, c in enumerate(divided)]
        of_step = [after - value for value, after in zip(values, [*values[1:], REWARDS[row]], strict=True)]
        expected = of_step + [of_step[-1]] * (len(columns) - len(divided))
        assert steps.scores[row, columns].tolist() == pytest.approx(expected, abs=1e-6)
        late = len(divided) > most
        assert steps.numbers[row, columns].tolist() == [
            -1 if late and k >= most else min(k, len(divided) - 1) for k in range(len(columns))
        ]


def test_passes_over_the_batch_for_cuts_and_masks_are_counted(rollouts: Rollouts) -> None:
    model, seen = gpt2(), []
    model.transformer.h[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[0]))
    two = Refined(LowProbabilityCuts(0.9, 2), EntropyCuts(0.3, 1), 1)
    for cuts, forced, passes in ((FixedLength(2), None, 0), (EntropyCuts(0.3, 1), None, 1), (two, 0.9, 3)):
        seen.clear()
        scorer = scorer_with(Table(), cuts, forced_above=forced)
        scorer(model, rollouts)
        assert sum(seen) == passes * len(rollouts)
        assert scorer.metrics["forward_equivalents"] == passes


def test_before_the_first_cut_there_is_nothing(rollouts: Rollouts) -> None:
    table = Table()
    scores = scorer_with(table, FixedLength(2), from_first_cut=True)(None, rollouts)
    whole = by_hand(rollouts, 0, 2)
    assert scores[0, rollouts.response_mask[0]].tolist() == pytest.approx([0, 0, *whole[2:]], abs=1e-6)
    assert not scores[1].any(), "no cut, no advantage"
    assert scores[3].any(), "without an answer the response is divided"


@pytest.mark.parametrize("cuts", [FixedLength(2), LowProbabilityCuts(0.9, 2), LowProbabilityCuts(0.02, 1)])
def test_from_the_first_cut_the_segments_sum_to_reward_minus_value_there(cuts: Any, rollouts: Rollouts) -> None:
    scorer = scorer_with(Table(), cuts, from_first_cut=True)
    model = gpt2()
    scores, (starts, _) = scorer(model, rollouts), scorer.starts(model, rollouts)
    cut_rows = starts.any(1).nonzero().flatten().tolist()
    assert cut_rows
    for row in range(4):
        if row not in cut_rows:
            assert not scores[row].any()
            continue
        first = int(starts[row].nonzero()[0])
        expected = REWARDS[row] - Table.value(rollouts, Prefix(row, first))
        assert float(scores[row, starts[row]].sum()) == pytest.approx(expected, abs=1e-6)
        assert not scores[row, :first].any()


def test_likely_tokens_get_nothing_and_leave_the_loss() -> None:
    """A policy's own completions; half of their tokens pass the threshold. Other tokens stay, whatever their score."""
    policy = tiny_policy()
    stage = make_stage(policy, LengthReward())
    sampling = SamplingConfig(max_new_tokens=12)
    rollouts = stage(policy.model, [MathProblem("1 + 1 =", "2")], 4, sampling, [3])
    rollouts = dataclasses.replace(rollouts, advantages=rollouts.rewards - rollouts.rewards.mean())
    own = token_logprobs(policy.model, rollouts.token_ids, rollouts.attention_mask, rollouts.response_mask)[0].exp()
    middle = float(own[rollouts.response_mask].median())
    lent = RolloutTools(stage, sampling)
    all_of_them, some = MonteCarlo(FixedLength(1), 2), MonteCarlo(FixedLength(1), 2, forced_above=middle)
    for scorer in (all_of_them, some):
        scorer.use(lent)
    scores = all_of_them(policy.model, rollouts)
    credit = assign_credit(policy.model, rollouts, some, SignedGate())
    likely = rollouts.response_mask & (own > middle)
    assert credit.loss_mask is not None
    assert torch.equal(rollouts.response_mask & ~credit.loss_mask, likely)
    assert torch.equal(credit.importance, scores.masked_fill(likely, 0.0))
    assert 0.3 < float(likely.sum() / rollouts.response_mask.sum()) < 0.6
    assert (credit.loss_mask & (scores == 0)).any(), "equal values before and after"
    assert assign_credit(policy.model, rollouts, all_of_them, SignedGate()).loss_mask is None


@pytest.mark.parametrize("wrapped", ["min_form", "shuffled"])
def test_what_leaves_the_loss_is_of_the_same_call_in_wrappers(wrapped: str) -> None:
    """The least likely tokens of one batch are not those of the next, whose width is another."""
    policy = tiny_policy()
    stage, lent = make_stage(policy, LengthReward()), RolloutTools(make_stage(policy, LengthReward()), SamplingConfig())
    inner = MonteCarlo(FixedLength(1), 2, forced_above=0.02)
    outer = MinForm(inner) if wrapped == "min_form" else Shuffled(inner, region="response")
    outer.use(lent)
    for tokens, seed in ((12, 3), (5, 4), (12, 5)):
        sampling = SamplingConfig(max_new_tokens=tokens)
        rollouts = stage(policy.model, [MathProblem("1 + 1 =", "2")], 4, sampling, [seed])
        rollouts = dataclasses.replace(rollouts, advantages=rollouts.rewards - rollouts.rewards.mean())
        own = token_logprobs(policy.model, rollouts.token_ids, rollouts.attention_mask, rollouts.response_mask)[0].exp()
        likely = rollouts.response_mask & (own > 0.02)
        credit = assign_credit(policy.model, rollouts, outer, SignedGate(), everything=True)
        assert credit.loss_mask is not None
        left_out = rollouts.response_mask & ~credit.loss_mask
        assert not credit.importance[left_out].any(), "no credit goes to what is not learnt from"
        if wrapped == "min_form":
            assert torch.equal(left_out, likely)
        else:
            assert torch.equal(left_out.sum(1), likely.sum(1))
            plain = assign_credit(policy.model, rollouts, inner, SignedGate(), everything=True)
            assert credit.importance.abs().sum(1).tolist() == pytest.approx(plain.importance.abs().sum(1).tolist())


def test_spo_with_every_token_cut_is_token_level_vineppo(rollouts: Rollouts) -> None:
    model = gpt2()
    spo = scorer_with(Table(), LowProbabilityCuts(1.0, 1))(model, rollouts)
    vine = scorer_with(Table(), FixedLength(1))(model, rollouts)
    assert torch.equal(spo, vine)


def test_a_large_sample_finds_the_value_of_a_choice() -> None:
    """V after minus V before the first token against the mean reward over the policy's own completions."""
    policy = tiny_policy()
    stage = make_stage(policy, LengthReward())
    sampling = SamplingConfig(max_new_tokens=6)
    rollouts = stage(policy.model, [MathProblem("1 + 1 =", "2")], 2, sampling, [5])
    scorer = MonteCarlo(FixedLength(99), samples=400)
    scorer.use(RolloutTools(stage, sampling))
    scores = scorer(policy.model, rollouts)
    many = stage(policy.model, [MathProblem("1 + 1 =", "2")], 400, sampling, [77]).rewards
    found = rollouts.rewards - scores[rollouts.response_mask].view(-1)[:1]
    assert float(found[0]) == pytest.approx(float(many.mean()), abs=4 * float(many.std()) * (2 / 400) ** 0.5)


@pytest.mark.slow
def test_asides_of_the_task_have_no_effect() -> None:
    """The differences of values over a sentence without numbers spread as samples do, sqrt(2 V (1 - V) / K), and no more;
    over the steps they spread more. Measured: 0.99 and 2.76 times as much."""
    policy = PretrainedPolicy("chain_asides").load()
    samples, task = 24, ChainTask(min_steps=3, max_steps=3, asides=3, noise=0.25)
    stage, sampling = make_stage(policy), SamplingConfig(max_new_tokens=110)
    problems = [ChainProblems(task)[i] for i in range(6)]
    rollouts = stage(policy.model, problems, 1, sampling, list(range(6)))
    scorer = MonteCarlo(Sentences(), samples)
    scorer.use(RolloutTools(stage, sampling))
    starts, _ = scorer.starts(policy.model, rollouts)
    scores = scorer(policy.model, rollouts)
    noise, found = {True: [0.0], False: [0.0]}, {True: [0.0], False: [0.0]}
    for row, text in enumerate(rollouts.completions):
        columns = rollouts.response_mask[row].nonzero().flatten().tolist()
        cuts = [columns.index(c) for c in starts[row].nonzero().flatten().tolist()]
        begins = [rollouts.token_spans[row][c][0] for c in cuts]
        values = [float(rollouts.rewards[row])]
        for cut in reversed(cuts):
            values.insert(0, values[0] - float(scores[row, columns[cut]]))
        for k in range(len(cuts) - 1):  # the last one's end has no noise
            aside = not re.search(r"\d", text[begins[k] : begins[k + 1]])
            found[aside].append((values[k + 1] - values[k]) ** 2)
            noise[aside].append(sum(v * (1 - v) / samples for v in values[k : k + 2]))
    spread = {aside: (sum(found[aside]) / sum(noise[aside])) ** 0.5 for aside in found}
    assert len(found[True]) > 40
    assert 0.8 < spread[True] < 1.2
    assert spread[False] > 1.5


def test_training_with_it_takes_a_step_where_no_group_has_a_signal() -> None:
    """Steps differ in value although all completions are judged alike at the end."""
    scorer = MonteCarlo(FixedLength(4), samples=2)
    module = make_module(tiny_policy(), scorer, gate=SignedGate())
    problems = (MathProblem("1 + 1 =", "2"), MathProblem("2 + 1 =", "3"))
    collected = module.collector.collect(problems, 0)
    assert collected.experience.credit.advantages.any()
    means = collected.metrics.means()
    assert means["credit/continuations"] > 0
    assert means["credit/forward_equivalents"] > 0
    assert means["time/continuations_s"] <= collected.seconds["score"]


def test_continuations_are_counted_without_a_signal_and_added_over_ranks() -> None:
    """Equal rewards: no group advantage, and nothing to weigh means by but the completions that were scored."""
    scorer = MonteCarlo(FixedLength(4), samples=2)
    module = make_module(tiny_policy(), scorer, lambda problems, completions: [1.0] * len(problems), gate=SignedGate())
    sums = [module.collector.collect((MathProblem("1 + 1 =", "2"),), step).metrics for step in (0, 1)]
    first, second = (x.means() for x in sums)
    assert first["reward_std"] == 0
    assert first["credit/continuations"] > 0
    assert first["credit/segments"] > 0
    both = MetricSums().merge(sums).means()
    assert both["credit/continuations"] == first["credit/continuations"] + second["credit/continuations"]
    assert both["time/continuations_s"] == max(first["time/continuations_s"], second["time/continuations_s"])
    assert both["credit/segments"] == pytest.approx((first["credit/segments"] + second["credit/segments"]) / 2)


@pytest.mark.parametrize(("forced_above", "asked"), [(None, False), (0.9, True)])
def test_importance_is_asked_of_groups_with_a_signal_alone(forced_above: float | None, asked: bool) -> None:
    """Their advantages stay 0; what leaves the loss is asked of all."""
    scorer = MonteCarlo(FixedLength(4), samples=2, absolute=True, forced_above=forced_above)
    module = make_module(tiny_policy(), scorer, lambda problems, completions: [1.0] * len(problems), gate=DirectGate())
    found = module.collector.collect((MathProblem("1 + 1 =", "2"),), 0).metrics.means()
    assert bool(found.get("credit/continuations")) == asked


def test_the_forecast_is_an_upper_bound(rollouts: Rollouts) -> None:
    scorer = scorer_with(Table(), FixedLength(1), samples=3)
    scorer(None, rollouts)
    counted = scorer.totals.means()["credit/continuations"]
    most = int(re.findall(r"at most ([\d,]+) a step", scorer.forecast(len(rollouts), 9))[0].replace(",", ""))
    assert most == 4 * 9 * 3
    assert counted <= most
    assert MinForm(scorer).forecast(4, 9) == scorer.forecast(4, 9)
    assert Position().forecast(4, 9) == ""


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"samples": 0}, r"scorer\.samples .* got 0"),
        ({"most_segments": 0}, r"scorer\.most_segments must be >= 1 or null, got 0"),
        ({"forced_above": 2}, r"scorer\.forced_above .* got 2"),
    ],
)
def test_bad_knobs_are_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MonteCarlo(FixedLength(2), **knobs)
