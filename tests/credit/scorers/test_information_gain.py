"""Information gains against plain passes, identities of the modes, and what is asked of a completion."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import LengthReward, make_module, make_stage, tiny_policy
from support.toy import gpt2, rollouts_of, tools

from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import SignedGate
from oar_lightning.credit.scorers import InformationGain
from oar_lightning.credit.scorers.information_gain import VALUES, centred, discounted, own_conclusion, potential
from oar_lightning.credit.scorers.prefix_answers import Belief
from oar_lightning.credit.segments import FixedLength, Sentences, segment_numbers
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.inspection.recorded import RecordedCompletion, encode_recorded, to_generation
from oar_lightning.policy.fresh import FreshPolicy
from oar_lightning.policy.language_model import evaluating
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.types import MathProblem, Rollouts

SEQUENCES = [
    {"before": [3, 4, 5, 6], "reasoning": [8, 9, 10, 11, 12], "conclude": [11], "answer": [12, 13], "tail": [1]},
    {"before": [3, 4, 5, 6], "reasoning": [15, 16], "answer": [22]},
    {"before": [23, 24], "reasoning": [25, 26, 27], "conclude": [31, 32], "answer": [28]},
    {"before": [23, 24], "tail": [33, 34, 35]},
]
GOLD, CUE = {"12": [30, 31], "7": [7]}, [36, 37]
PROBLEMS = (MathProblem("a", "12"), MathProblem("a", "12"), MathProblem("b", "7"), MathProblem("b", "7"))


def encode(before: str, text: str) -> tuple[list[int], list[int]]:
    return CUE, GOLD.get(text, [])


def scorer_with(**knobs: Any) -> InformationGain:
    scorer = InformationGain(FixedLength(2), **knobs)
    scorer.use(tools(encode=encode))
    return scorer


@pytest.fixture
def rollouts() -> Rollouts:
    found = rollouts_of(SEQUENCES, group_size=2, problems=PROBLEMS, answers=("5", "6", "7", None))
    return dataclasses.replace(found, advantages=torch.tensor([1.0, -1.0, 0.5, -0.5]))


def by_hand(model, sequence, cue, answer) -> np.ndarray:
    """q after the prompt and after every two tokens of the reasoning."""
    reasoning, q = sequence["reasoning"], []
    for end in [*range(0, len(reasoning), 2), len(reasoning)]:
        ids = [*sequence["before"], *reasoning[:end], *cue, *answer]
        with torch.no_grad():
            log_p = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        q.append(np.mean([float(log_p[len(ids) - len(answer) + i - 1, token]) for i, token in enumerate(answer)]))
    return np.array(q)


CASES = [(0, [11], [30, 31]), (1, CUE, [30, 31]), (2, [31, 32], [28])]
"""Row, cue, gold answer: the completion's own conclusion where it has one, and its own answer where that is the gold one."""


@pytest.mark.parametrize(
    ("mode", "value"), [("gold", lambda q: q), ("prob", np.exp), ("watermark", lambda q: np.maximum.accumulate(np.exp(q)))]
)
def test_gains_are_differences_of_values(mode, value, rollouts) -> None:
    model = gpt2()
    scores = scorer_with(mode=mode)(model, rollouts)
    with evaluating(model):
        for row, cue, answer in CASES:
            v = value(by_hand(model, SEQUENCES[row], cue, answer))
            count = len(SEQUENCES[row]["reasoning"])
            expected = np.repeat(np.diff(v), 2)[:count]
            np.testing.assert_allclose(scores[row, rollouts.reasoning_mask[row]].numpy(), expected, atol=1e-9)
    assert not scores[~rollouts.reasoning_mask].any()


def test_the_own_answer_counts_with_the_sign_of_the_advantage(rollouts) -> None:
    model = gpt2()
    scores = scorer_with(mode="own")(model, rollouts)
    with evaluating(model):
        for row, cue, answer in ((0, [11], [12, 13]), (1, CUE, [22]), (2, [31, 32], [28])):
            sign = np.sign(float(rollouts.advantages[row]))
            expected = sign * np.repeat(np.diff(by_hand(model, SEQUENCES[row], cue, answer)), 2)
            actual = scores[row, rollouts.reasoning_mask[row]].numpy()
            np.testing.assert_allclose(actual, expected[: len(actual)], atol=1e-9)


def test_a_last_token_that_stands_for_the_answer_is_asked_for_without_words_that_lead_up_to_one(rollouts) -> None:
    """With answer.no_span=last_token, of a completion that states no answer."""
    model, cut = gpt2(), dataclasses.replace(rollouts, answers=("5", None, "7", None))
    scores = scorer_with(mode="own")(model, cut)
    with evaluating(model):
        expected = -np.diff(by_hand(model, SEQUENCES[1], [], [22]))
    np.testing.assert_allclose(scores[1, cut.reasoning_mask[1]].numpy(), np.repeat(expected, 2), atol=1e-9)


@pytest.mark.parametrize("mode", VALUES)
def test_gains_telescope(mode, rollouts) -> None:
    scorer = scorer_with(mode=mode)
    model = gpt2()
    found = scorer.steps(model, dataclasses.replace(rollouts, advantages=None))
    beliefs = scorer.beliefs(model, rollouts, found.numbers)
    for row, belief in beliefs.items():
        of_steps = [float(found.scores[row, found.numbers[row] == k][0]) for k in range(int(found.numbers[row].max()) + 1)]
        value = VALUES[mode](belief)
        assert sum(of_steps) == pytest.approx(float(value[-1] - value[0]), abs=1e-12)


def test_watermark_gains_are_never_negative_and_repetitions_earn_nothing() -> None:
    v = torch.tensor([0.2, 0.5, 0.3, 0.5, 0.6]).double()
    gains = VALUES["watermark"](Belief(v.log(), v)).diff()
    assert gains.tolist() == pytest.approx([0.3, 0, 0, 0.1])
    expected = [max(0.0, float(v[k] - v[:k].max())) for k in range(1, 5)]
    assert gains.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("accuracy", "confidence", "phi"), [(1, 1, 1), (0, 1, -1), (0, 0, 0), (1, 0, 0.5), (0.5, 1, 0), (0.5, 0.5, 0.125)]
)
def test_the_potential_by_hand(accuracy, confidence, phi) -> None:
    assert float(potential(torch.tensor(accuracy), torch.tensor(confidence))) == pytest.approx(phi)


def test_numbers_do_not_depend_on_sharing(rollouts) -> None:
    model = gpt2()
    for mode in VALUES:
        shared = scorer_with(mode=mode)
        alone = scorer_with(mode=mode, share_prefixes=False)
        torch.testing.assert_close(shared(model, rollouts), alone(model, rollouts), rtol=0, atol=1e-10)
        assert shared.metrics["forward_equivalents"] < alone.metrics["forward_equivalents"]


def test_discounted_sums_and_baselines_by_hand() -> None:
    gains = torch.tensor([1.0, 2.0, 4.0]).double()
    assert discounted(gains, 0.5).tolist() == [3.0, 4.0, 4.0]
    assert discounted(gains, 0.0).tolist() == gains.tolist()
    group = [torch.tensor([1.0, 3.0]), torch.tensor([5.0]), torch.tensor([0.0, 0.0, 0.0, 3.0])]
    assert [x.tolist() for x in centred(group, "none")] == [x.tolist() for x in group]
    mean = 12 / 7
    assert torch.cat(centred(group, "group")).tolist() == pytest.approx([x - mean for x in [1, 3, 5, 0, 0, 0, 3]])
    by_step = centred(group, "step")
    # places 0 and 1/2 of the three, of the third its steps 0 and 2
    assert by_step[0].tolist() == pytest.approx([1 - 6 / 3, 3 - 8 / 3])
    assert by_step[1].tolist() == pytest.approx([5 - 6 / 3])
    assert by_step[2].tolist() == pytest.approx([-2, -2, -8 / 3, 3 - 11 / 3])


def test_igpo_is_the_discounted_gain_above_the_groups_mean_beside_the_outcome(rollouts) -> None:
    """mode=prob, discount, baseline=group, added to the group advantage: +experiment=igpo by plain passes."""
    model = gpt2()
    scorer = scorer_with(mode="prob", discount=0.9, baseline="group")
    credit = assign_credit(model, rollouts, scorer, SignedGate("add", region="reasoning"))
    returns = {}
    with evaluating(model):
        for row, cue, answer in CASES:
            gains = np.diff(np.exp(by_hand(model, SEQUENCES[row], cue, answer)))
            returns[row] = np.array([sum(0.9 ** (j - k) * g for j, g in enumerate(gains) if j >= k) for k in range(len(gains))])
    for group in ((0, 1), (2,)):
        mean = np.concatenate([returns[row] for row in group]).mean()
        for row in group:
            expected = float(rollouts.advantages[row]) + np.repeat(returns[row] - mean, 2)
            mask = rollouts.reasoning_mask[row]
            np.testing.assert_allclose(credit.advantages[row, mask].numpy(), expected[: int(mask.sum())], atol=1e-6)
            rest = rollouts.response_mask[row] & ~mask
            assert (credit.advantages[row, rest] == rollouts.advantages[row]).all()


def test_rows_that_cannot_be_asked_score_nothing_and_are_counted(rollouts) -> None:
    scorer = scorer_with()
    nameless = dataclasses.replace(rollouts, problems=(*PROBLEMS[:2], MathProblem("b", " "), PROBLEMS[3]))
    scores = scorer(gpt2(), nameless)
    assert scores[:2].any(1).all()
    assert not scores[2:].any()
    assert scorer.metrics["unread_frac"] == 0.5


def test_a_prefix_that_does_not_fit_the_policy_is_left_out() -> None:
    long = rollouts_of(
        [{"before": [1], "reasoning": [2] * 61, "answer": [3]}, {"before": [1], "reasoning": [2] * 9, "answer": [3]}],
        problems=(MathProblem("a", "12"),) * 2,
    )
    scorer = scorer_with()
    scores = scorer(gpt2(), long)  # 64 positions; 62 tokens, two of the cue and two of the answer
    assert not scores[0].any()
    assert scores[1].any()
    empty = scorer(gpt2(), long.select(torch.tensor([0])))
    assert not empty.any()


def test_equal_texts_of_problems_with_other_answers_are_not_one(rollouts) -> None:
    twice = rollouts_of([SEQUENCES[0]] * 2, problems=(MathProblem("a", "12"), MathProblem("a", "7")), answers=("5", "5"))
    scores = scorer_with()(gpt2(), twice)
    assert not torch.allclose(scores[0], scores[1])


def test_a_copied_step_gains_nothing(copying_model) -> None:
    """Policy: the answer is the key among the fillers. The step with the key decides; one that repeats it adds nothing."""
    model, _ = copying_model
    key = 7
    sequence = {"before": [1], "reasoning": [15, key, 16, key, 12, 13], "conclude": [2], "answer": [key]}
    rollouts = rollouts_of([sequence], problems=(MathProblem("a", str(key)),), answers=(str(key),))
    scorer = InformationGain(FixedLength(2), mode="prob")
    first, copy, filler = scorer(model, rollouts)[rollouts.reasoning_mask].tolist()[::2]
    assert first > 0.5
    assert abs(copy) < 0.1 * first
    assert abs(filler) < 0.1 * first


def test_real_completions_of_the_built_in_policy() -> None:
    """Gold and own answer agree on a right completion; the answer that a sum yields gets likelier where the sum is done."""
    policy = PretrainedPolicy("chain").load()
    stated = "{{{0.answer}}}".format
    problem = next(p for p in ChainProblems(ChainTask()) if p.solution.count("\n") == 3 and stated(p) in p.solution)
    wrong = problem.solution.replace(stated(problem), "{77}")
    recorded = [RecordedCompletion(str(i), problem, text) for i, text in enumerate((problem.solution, wrong))]
    stage = make_stage(policy)
    generation = to_generation(encode_recorded(recorded, policy.tokenizer, stage.prompt), 0, torch.device("cpu"))
    rollouts = dataclasses.replace(stage.judge(generation, [problem] * 2, 2, 0), advantages=torch.tensor([1.0, -1.0]))
    scores = {}
    for mode in ("gold", "own"):
        scorer = InformationGain(Sentences(), mode=mode)
        scorer.use(tools(encode=stage.token_bytes.encode))
        scores[mode] = scorer(policy.model, rollouts)
        assert scorer.metrics["unread_frac"] == 0
    torch.testing.assert_close(scores["own"][0], scores["gold"][0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scores["gold"][1], scores["gold"][0], msg="the gold answer in the same words")
    steps = scores["gold"][0, rollouts.reasoning_mask[0]].unique_consecutive()
    assert len(steps) == 3
    assert steps.argmax() == 2, "the last sum yields the answer"


@pytest.mark.parametrize(("gold", "own"), [("-3", "7"), ("-3", "-3"), ("7", "-3"), ("12", "7")])
def test_the_gold_answer_is_asked_once_in_the_completions_words_whatever_tokens_merge(gold: str, own: str) -> None:
    r"""With a token `{-`, and one `{`: `\boxed{{-3` is no question."""
    policy = FreshPolicy(vocab_size=420).build(["So it is left. The answer is \\boxed{-3}. Or \\boxed{12}, \\boxed{7}"] * 200)
    assert policy.tokenizer.tokenize("\\boxed{-3")[-2:] == ["{-", "3"]
    stage, problem = make_stage(policy), MathProblem("left?", gold)
    recorded = [RecordedCompletion("x", problem, f"So it is left. The answer is \\boxed{{{own}}}")]
    generation = to_generation(encode_recorded(recorded, policy.tokenizer, stage.prompt), 0, torch.device("cpu"))
    rollouts = stage.judge(generation, [problem], 1, 0)
    scorer = InformationGain(Sentences())
    scorer.use(tools(encode=stage.token_bytes.encode))
    (numbers,) = segment_numbers(scorer.segments(None, rollouts, rollouts.reasoning_mask), rollouts.reasoning_mask).tolist()
    asked = scorer.question(rollouts, 0, numbers)
    assert asked is not None
    assert policy.tokenizer.decode([*asked.cue, *asked.answer]).strip() == f"The answer is \\boxed{{{gold}"


def test_training_takes_a_step_with_it() -> None:
    module = make_module(
        tiny_policy(),
        InformationGain(FixedLength(4)),
        LengthReward(),
        gate=SignedGate("multiply", 0.5, "row", 1.0, region="reasoning"),
    )
    collected = module.collector.collect((MathProblem("1 + 1 =", "2"), MathProblem("2 + 1 =", "3")), 0)
    credit, rollouts = collected.experience.credit, collected.experience.rollouts
    assert credit.advantages.any()
    ratio = credit.weights[rollouts.reasoning_mask & (credit.advantages != 0)]
    assert ratio.min() >= 0.5 - 1e-6
    assert ratio.max() <= 1.5 + 1e-6
    assert ratio.std() > 0.01
    assert collected.metrics.means()["credit/forward_equivalents"] > 0


def test_its_size_is_an_importance(rollouts) -> None:
    model = gpt2()
    scores, sizes = scorer_with()(model, rollouts), scorer_with(absolute=True)
    assert not sizes.signed
    assert torch.equal(sizes(model, rollouts), scores.abs())
    assert (scores < 0).any()
    with_gate = assign_credit(model, rollouts, scorer_with(), SignedGate("add", region="reasoning"))
    expected = (rollouts.advantages[:, None] + scores).masked_fill(~rollouts.response_mask, 0)
    torch.testing.assert_close(with_gate.advantages, expected.to(with_gate.advantages))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"mode": "silver"}, r"scorer\.mode must be one of gold, own, .* got 'silver'"),
        ({"cue": ""}, r"scorer\.cue .* must not be empty"),
        ({"discount": 1.5}, r"scorer\.discount must be in \[0, 1\], or null .* got 1\.5"),
        ({"baseline": "best"}, r"scorer\.baseline must be one of none, group, step, got 'best'"),
        ({"token_budget": 0}, r"scorer\.token_budget .* got 0"),
    ],
)
def test_bad_knobs_are_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InformationGain(FixedLength(2), **knobs)


def test_the_cue_is_the_text_before_the_answer() -> None:
    pieces = ["ok ", "So 3. ", "The", " answer", " is", " 5", ".", "x5"]
    ends = [*itertools.accumulate(map(len, pieces))]
    told = rollouts_of(
        [{"before": [1], "reasoning": [2, 3], "conclude": [4, 5, 6], "answer": [7], "tail": [8, 9]}],
        completions=("".join(pieces),),
        token_spans=(tuple(itertools.pairwise([0, *ends])),),
        answers=("5",),
    )
    assert own_conclusion(told, 0, [3, 4, 5], [6]) == ("The answer is", " ")
    without = dataclasses.replace(told, token_spans=())
    assert own_conclusion(without, 0, [3, 4, 5], [6]) == ("", "")
    other = dataclasses.replace(told, answers=("x5",))
    assert own_conclusion(other, 0, [3, 4, 5], [6]) == ("The answer is", ""), "what the answer's first token does not hold"
