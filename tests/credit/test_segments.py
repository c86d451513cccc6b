"""Segments cover every reasoning token exactly once, and lie where their texts and probabilities say."""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fixtures import LengthReward, built_in_policy, make_stage, tiny_policy
from support.toy import gpt2, rollouts_of

from oar_lightning.answers.span import AnswerFormat
from oar_lightning.credit.predictions import predictions
from oar_lightning.credit.segments import (
    EntropyCuts,
    FixedLength,
    LowProbabilityCuts,
    Refined,
    Segmenter,
    Sentences,
    TextCuts,
    reasoning_or_all,
    segment_numbers,
)
from oar_lightning.data import task_credit
from oar_lightning.data.chain.credit import step_ends
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.rollout import SamplingConfig
from oar_lightning.types import MathProblem, Rollouts

SEQUENCES = [
    {"before": [3, 4, 5, 6], "reasoning": [8, 9, 10, 11, 12, 13, 14], "conclude": [11], "answer": [12, 13]},
    {"before": [14], "reasoning": [15, 16], "answer": [22]},
    {"before": [14], "answer": [22]},
]
STRATEGIES: list[Segmenter] = [
    FixedLength(3),
    Sentences(),
    Sentences(shortest=4),
    TextCuts(step_ends),
    EntropyCuts(0.2, 1),
    EntropyCuts(0.3, 3),
    LowProbabilityCuts(0.9, 2),
    Refined(Sentences(), EntropyCuts(0.3), 3),
]


def assert_covers(starts: torch.Tensor, mask: torch.Tensor) -> None:
    numbers = segment_numbers(starts, mask)
    assert torch.equal(numbers >= 0, mask), "every masked token is in a segment, and no other"
    for row in range(len(mask)):
        own = numbers[row, mask[row]].tolist()
        assert own == sorted(own)
        assert set(own) == set(range(len(set(own))))


@pytest.fixture(scope="module")
def sampled() -> Rollouts:
    policy = tiny_policy()
    problems = [MathProblem("Ann has 3 pens. Ann finds 4. How many pens are left?", "7")]
    return make_stage(policy, LengthReward())(policy.model, problems, 8, SamplingConfig(max_new_tokens=30), [0])


@pytest.mark.parametrize("segmenter", STRATEGIES, ids=lambda s: f"{type(s).__name__}-{getattr(s, 'shortest', 1)}")
def test_every_token_of_a_sampled_completion_is_in_one_segment(segmenter: Segmenter, sampled: Rollouts) -> None:
    for mask in (sampled.reasoning_mask, sampled.response_mask):
        starts = segmenter(tiny_policy().model, sampled, mask)
        assert_covers(starts, mask)
        if (shortest := getattr(segmenter, "shortest", 1)) > 1:
            for row in range(len(mask)):
                lengths = segment_numbers(starts, mask)[row, mask[row]].bincount()
                assert len(lengths) == 1 or int(lengths.min()) >= shortest


@given(length=st.integers(1, 9))
@settings(max_examples=9, deadline=None)
def test_fixed_lengths(length: int) -> None:
    rollouts = rollouts_of(SEQUENCES)
    starts = FixedLength(length)(None, rollouts, rollouts.reasoning_mask)
    assert_covers(starts, rollouts.reasoning_mask)
    lengths = segment_numbers(starts, rollouts.reasoning_mask)[0, rollouts.reasoning_mask[0]].bincount().tolist()
    assert set(lengths[:-1]) <= {length}
    assert sum(lengths) == 7


def test_without_an_answer_all_of_the_response_has_steps() -> None:
    rollouts = rollouts_of([*SEQUENCES[:2], {"before": [3], "tail": [4, 5, 6]}])
    found = reasoning_or_all(rollouts)
    assert torch.equal(found[:2], rollouts.reasoning_mask[:2])
    assert torch.equal(found[2], rollouts.response_mask[2])


def with_text(text: str, ends: list[int]) -> Rollouts:
    spans = tuple(zip([0, *ends[:-1]], ends, strict=True))
    rollouts = rollouts_of([{"before": [1], "reasoning": list(range(3, 3 + len(ends)))}], completions=(text,))
    return Rollouts(**{**vars(rollouts), "token_spans": (spans,)})


def test_sentences_begin_at_the_first_token_behind_a_stop_or_line_end() -> None:
    #  0 "So 3.5"  1 " is x."  2 " Then"  3 " y!\n\n"  4 "Last"  5 " 2."  6 "7"
    rollouts = with_text("So 3.5 is x. Then y!\n\nLast 2.7", [6, 12, 17, 22, 26, 29, 30])
    starts = Sentences()(None, rollouts, rollouts.reasoning_mask)
    assert starts[0, rollouts.reasoning_mask[0]].tolist() == [True, False, True, False, True, False, False]


@pytest.mark.parametrize(
    ("pieces", "begin"),
    [
        (["x.", " Then", " y"], [1]),
        (["x", ".", " ", "Then", " y"], [2]),
        (["x", ". ", "Then y"], [2]),
        (["x", ". The", "n y"], [2]),  # a token that begins before the cut stays with its sentence
        (["x", ".\n", "  Then"], [2]),
        (["x", " \n", "\n", " ", "Then"], [3]),
        (["x!", "\n"], []),
    ],
)
def test_spaces_go_with_the_next_sentence_and_line_ends_with_their_line(pieces: list[str], begin: list[int]) -> None:
    ends = [sum(map(len, pieces[: i + 1])) for i in range(len(pieces))]
    rollouts = with_text("".join(pieces), ends)
    starts = Sentences()(None, rollouts, rollouts.reasoning_mask)
    assert starts[0, rollouts.reasoning_mask[0]].nonzero().flatten().tolist() == [0, *begin]


def test_a_run_of_spaces_is_cut_in_linear_time() -> None:
    """A collapsed policy writes them; read from each of its places a run of this length would take minutes."""
    text = " " * 200_000 + "x.  y\n" + " \n" * 1000
    started = time.process_time()
    rollouts = with_text(text, [200_002, 200_005, len(text)])
    Sentences()(None, rollouts, rollouts.reasoning_mask)
    assert time.process_time() - started < 10


def test_a_last_segment_of_just_the_shortest_length_is_cut() -> None:
    """Eight tokens, cut before the sixth: three are behind the cut, one too few where four are the fewest."""
    rollouts = rollouts_of([{"before": [1, 2], "reasoning": list(range(3, 11)), "answer": [20]}])
    for shortest, expected in ((3, [0, 5]), (4, [0])):
        segmenter = At(5)
        segmenter.shortest = shortest
        starts = segmenter(None, rollouts, rollouts.reasoning_mask)
        assert starts[0, rollouts.reasoning_mask[0]].nonzero().flatten().tolist() == expected


def test_likely_and_certain_tokens_are_not_cut_at() -> None:
    model, rollouts = gpt2(), rollouts_of(SEQUENCES)
    mask = rollouts.reasoning_mask
    found = predictions(model, rollouts, mask, TokenBudget("test", None, 1))
    p = found.logprobs.exp()[0, mask[0]]
    threshold = float(p.median())
    low = (p < threshold).tolist()
    every = LowProbabilityCuts(threshold, 1)(model, rollouts, mask)[0, mask[0]].tolist()
    assert every[1:] == low[1:]
    second = LowProbabilityCuts(threshold, 2)(model, rollouts, mask)[0, mask[0]].tolist()
    assert [i for i in range(1, 7) if second[i]] == [i for i in range(7) if low[i]][1::2]
    assert LowProbabilityCuts(1.0, 1)(model, rollouts, mask)[mask].all()
    entropies = found.entropy[0, mask[0]]
    cut = EntropyCuts(0.4, 1)(model, rollouts, mask)[0, mask[0]]
    assert set(entropies[cut].tolist()) - {float(entropies[0])} <= set(entropies.sort().values[-3:].tolist())


@pytest.mark.parametrize(
    ("make", "knobs", "message"),
    [
        (FixedLength, {"length": 0}, r"scorer\.segments\.length .* got 0"),
        (Sentences, {"shortest": 0}, r"scorer\.segments\.shortest .* got 0"),
        (EntropyCuts, {"share": 0}, r"scorer\.segments\.share .* got 0"),
        (LowProbabilityCuts, {"threshold": 1.5}, r"scorer\.segments\.threshold .* got 1.5"),
        (LowProbabilityCuts, {"every": 0}, r"scorer\.segments\.every must be >= 1, got 0"),
    ],
)
def test_bad_knobs_are_named(make, knobs, message) -> None:
    with pytest.raises(ValueError, match=message):
        make(**knobs)


class At(Segmenter):
    """Cuts before the tokens of given numbers."""

    def __init__(self, *places: int) -> None:
        self.places = places

    def cuts(self, model: object, rollouts: Rollouts, mask: torch.Tensor) -> torch.Tensor:
        return mask & torch.isin(mask.long().cumsum(1) - 1, torch.tensor(self.places))


@pytest.mark.parametrize(
    ("coarse", "fine", "shortest", "expected"),
    [
        ((4,), (2, 6), 1, [0, 2, 4, 6]),
        ((4,), (2, 6), 2, [0, 2, 4, 6]),
        ((4,), (1, 2, 3, 5, 7), 2, [0, 2, 4]),
        ((1, 4), (2, 6), 3, [0, 4]),  # a sentence of one token is joined; no cut leaves three on both sides
        ((), (3, 4, 5), 3, [0, 3]),
        ((), (4, 5), 4, [0, 4]),
        ((), (2, 4, 6), 9, [0]),
    ],
)
def test_segments_are_cut_again_where_both_parts_are_long_enough(
    coarse: tuple[int, ...], fine: tuple[int, ...], shortest: int, expected: list[int]
) -> None:
    """Eight tokens of reasoning behind two others."""
    rollouts = rollouts_of([{"before": [1, 2], "reasoning": list(range(3, 11)), "answer": [20]}])
    starts = Refined(At(*coarse), At(*fine), shortest)(None, rollouts, rollouts.reasoning_mask)
    assert starts[0, rollouts.reasoning_mask[0]].nonzero().flatten().tolist() == expected
    assert_covers(starts, rollouts.reasoning_mask)


def test_the_packages_rules_of_its_tasks_refuse_other_problems_and_a_users_are_not_tried_out() -> None:
    foreign, own = MathProblem("What is 2 + 2?", "4"), ChainProblems(ChainTask())[0]
    of_tasks, of_user = TextCuts(task_credit.step_ends), TextCuts(lambda problem, text: [text.index("Step 2")])
    for segmenter in (of_tasks, Refined(of_tasks, Sentences()), Refined(Sentences(), TextCuts(partial(task_credit.step_ends)))):
        assert segmenter.knows_tasks
        segmenter.check_problem(own)
        with pytest.raises(ValueError, match="scorer/segments=task_steps reads problems of data=chain or graph only"):
            segmenter.check_problem(foreign)
    for segmenter in (of_user, Sentences(), Refined(Sentences(), of_user), FixedLength()):
        assert not segmenter.knows_tasks
        segmenter.check_problem(foreign)


@pytest.mark.slow
def test_sentences_cut_at_entropies_are_the_steps_of_the_built_in_task() -> None:
    """Each holds the end of exactly one step, which lies some words before the sentence's (no boundary is the same);
    the largest entropies are those of words that begin sentences, and cut no further."""
    policy = built_in_policy()
    problems = [problem for problem, _ in zip(ChainProblems(ChainTask()), range(16), strict=False)]
    stage = make_stage(policy, answer=AnswerFormat())
    rollouts = stage(policy.model, problems, 4, SamplingConfig(max_new_tokens=80), list(range(16)))
    mask = rollouts.reasoning_mask
    ends = TextCuts(step_ends)(policy.model, rollouts, mask) & (mask.long().cumsum(1) > 1)
    for segmenter in (Sentences(), Refined(Sentences(), EntropyCuts())):
        numbers = segment_numbers(segmenter(policy.model, rollouts, mask), mask)
        for row in range(len(rollouts)):
            held = numbers[row, ends[row].nonzero().flatten() - 1].tolist()
            assert held == list(range(int(numbers[row].max()) + 1)), rollouts.completions[row]
