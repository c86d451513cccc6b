"""The oracle: planted key tokens, invariances, fallbacks, and the real task's tokens."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch
from support.fixtures import built_in_policy, make_module, make_stage, tiny_policy
from support.toy import padded, rollouts_of

from oar_lightning.common.config_check import ConfigError
from oar_lightning.credit.gates.bilevel import BilevelGate, gate_weights
from oar_lightning.credit.scorers import Inverted, OarG, Oracle, Shuffled
from oar_lightning.credit.scorers.oracle import check_known
from oar_lightning.data.chain.credit import ChainCredit
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.rollout.sampling import lay_out
from oar_lightning.types import CausalSpans, MathProblem, Rollouts

SEQUENCES = [
    {"before": [3, 4, 5], "reasoning": [8, 9, 10, 11], "conclude": [12], "answer": [13], "tail": [1]},
    {"before": [14], "reasoning": [15, 16, 17, 18, 19, 20], "answer": [22]},
    {"before": [23, 24], "reasoning": [25, 26]},
]
TEXTS = ["aaXXbb=Z.", "XabcdX9", "ab"]
SPANS = (
    ((0, 1), (1, 3), (3, 4), (4, 6), (6, 7), (7, 8), (8, 9)),
    ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7)),
    ((0, 1), (1, 2)),
)


def planted(problem: MathProblem, text: str) -> CausalSpans:
    """Every X and every Z matter; texts without one fall back to nothing."""
    return CausalSpans(tuple((i, i + 1) for i, c in enumerate(text) if c in "XZ"), exact="X" in text)


def rollouts(**changes: Any) -> Rollouts:
    return rollouts_of(SEQUENCES, **{"completions": tuple(TEXTS), "token_spans": SPANS} | changes)


def test_planted_tokens_and_only_those() -> None:
    given = rollouts()
    scorer = Oracle(planted)
    importance = scorer(None, given)
    assert [importance[i, m].tolist() for i, m in enumerate(given.reasoning_mask)] == [[0, 1, 1, 0], [1, 0, 0, 0, 0, 1], [0, 0]]
    assert not importance[~given.reasoning_mask].any(), "the answer's Z is not reasoning"
    assert not importance.requires_grad
    assert scorer.metrics == {"unread_frac": pytest.approx(1 / 3), "inexact_frac": pytest.approx(1 / 3)}


def test_a_sign_says_where_it_went_wrong() -> None:
    def after_a(problem: MathProblem, text: str) -> CausalSpans:
        place = text.rindex("a") + 1
        return CausalSpans(((place, place + 1),), exact=text != "ab")

    given = rollouts()
    scorer = Oracle(planted, wrong=after_a)
    assert scorer.signed
    assert not Oracle(planted).signed
    scores = scorer(None, given)
    assert [scores[i, m].tolist() for i, m in enumerate(given.reasoning_mask)] == [[0, -1, 1, 0], [1, 0, -1, 0, 0, 1], [0, -1]]
    assert not scores[~given.reasoning_mask].any()
    assert scorer.metrics == {"unread_frac": 0.0, "inexact_frac": pytest.approx(1 / 3)}, "those of where it went wrong"


def test_padding_order_and_neighbours_do_not_matter() -> None:
    given = rollouts()
    expected = Oracle(planted)(None, given)
    assert torch.equal(Oracle(planted)(None, padded(given, 2, 3))[:, 2:-3], expected)
    order = torch.tensor([2, 0, 1])
    turned = given.select(order)
    assert turned.token_spans == (SPANS[2], SPANS[0], SPANS[1])
    assert torch.equal(Oracle(planted)(None, turned), expected[order])
    alone = given.select(torch.tensor([1]))
    assert torch.equal(Oracle(planted)(None, alone)[alone.reasoning_mask], expected[1, given.reasoning_mask[1]])


def test_texts_in_which_nothing_matters_are_left_at_weight_one() -> None:
    scorer = Oracle(planted)
    given = rollouts(completions=("aabbcc=..", *TEXTS[1:]))
    importance = scorer(None, given)
    assert not importance[0].any()
    assert scorer.metrics["unread_frac"] == pytest.approx(2 / 3)
    assert (gate_weights(importance, given.reasoning_mask)[0] == 1).all()


def test_bytes_that_are_not_utf8_do_not_move_credit() -> None:
    """Each of them is one character of the text, as it is in the tokens' ranges."""
    stage = make_stage(tiny_policy())
    tokenizer = stage.token_bytes.tokenizer
    half = tokenizer("😀", add_special_tokens=False).input_ids[:2]
    after = tokenizer("a X b", add_special_tokens=False).input_ids
    response = [*half, *after, tokenizer.eos_token_id]
    given = stage.judge(
        lay_out([[after[0]]], [response], [False], stage.pad_token_id, torch.device("cpu")), [MathProblem("q", "1")], 1, 0
    )
    given = dataclasses.replace(given, reasoning_mask=given.response_mask)
    (chosen,) = Oracle(planted)(None, given)[given.response_mask].nonzero().flatten().tolist()
    assert "X" in tokenizer.decode([response[chosen]])


def test_rollouts_without_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="scorer=oracle reads the text of completions"):
        Oracle(planted)(None, rollouts_of(SEQUENCES))


@pytest.mark.parametrize("control", [Inverted, Shuffled])
def test_controls_put_as_much_credit_elsewhere(control: type) -> None:
    given = rollouts_of(
        [{"before": [1], "reasoning": list(range(2, 32)), "answer": [33]}],
        completions=("." * 20 + "X" * 3 + "." * 7 + "Z",),
        token_spans=(tuple((i, i + 1) for i in range(31)),),
    )
    mask = given.reasoning_mask[0]
    oracle, scorer = Oracle(planted)(None, given)[0, mask], control(Oracle(planted))
    elsewhere = scorer(None, given)[0, mask]
    assert elsewhere.sum() == oracle.sum() == 3
    assert not torch.equal(elsewhere, oracle)
    if control is Inverted:
        assert not elsewhere[oracle > 0].any()
    assert scorer.metrics["unread_frac"] == 0


@pytest.mark.parametrize("which", ["causal", "results", "first_error"])
@pytest.mark.parametrize("variant", [{}, {"companion": "distracts", "asides": 1, "restate": False}])
def test_on_the_tokens_of_real_texts(which: Any, variant: dict[str, Any]) -> None:
    """The chosen tokens spell the generator's numbers; the gate then gives them nearly all the weight."""
    policy = built_in_policy()
    stage = make_stage(policy)
    task = ChainTask(**variant)
    rng = random.Random(0)
    problems = [ChainProblems(task)[i] for i in range(8)]
    generated = [task.problem(random.Random(f"0/train/{i}"), held_out=False) for i in range(8)]
    solutions = [task.solution(p, rng) for p in generated]
    ids = [[*policy.tokenizer(s.text, add_special_tokens=False).input_ids, policy.tokenizer.eos_token_id] for s in solutions]
    prompts = [policy.tokenizer(p.question + "\n").input_ids for p in problems]
    generation = lay_out(prompts, ids, [False] * 8, policy.tokenizer.pad_token_id, torch.device("cpu"))
    judged = stage.judge(generation, problems, 8, 0)
    scorer = Oracle(ChainCredit(which))
    importance = scorer(policy.model, judged)
    for row, (problem, solution) in enumerate(zip(problems, solutions, strict=True)):
        assert judged.completions[row] == solution.text
        spelled = policy.tokenizer.decode(judged.token_ids[row][importance[row] > 0].tolist())
        spans = ChainCredit(which)(problem, solution.text).spans
        assert spelled.replace(" ", "") == "".join(solution.text[a:b] for a, b in spans)
    assert scorer.metrics == {"unread_frac": 0, "inexact_frac": 0}
    gate = BilevelGate(threshold="absolute", tau=0.5)
    weights = gate_weights(importance, judged.reasoning_mask, gate)
    torch.testing.assert_close(weights.masked_fill(~judged.reasoning_mask, 0).sum(1), judged.reasoning_mask.sum(1).float())
    for row, mask in enumerate(judged.reasoning_mask):  # (1 + beta) against the floor
        chosen = weights[row, mask & (importance[row] > 0)]
        others = weights[row, mask & (importance[row] == 0)]
        torch.testing.assert_close(chosen, (30 * others[0]).expand_as(chosen))


def test_places_of_tokens_are_dropped_once_credit_is_assigned() -> None:
    """They would only make checkpoints larger."""
    seen: list[Rollouts] = []

    class Watched(Oracle):
        def __call__(self, model: Any, rollouts: Rollouts) -> torch.Tensor:
            seen.append(rollouts)
            return super().__call__(model, rollouts)

    module = make_module(tiny_policy(), Watched(ChainCredit()))
    experience = module.collector.collect(tuple(ChainProblems(ChainTask())[i] for i in range(2)), 0).experience
    assert len(seen[0].token_spans) == len(seen[0]) > 0
    assert experience.rollouts.token_spans == ()


@pytest.mark.parametrize(
    "scorer", [Oracle(ChainCredit()), Shuffled(Oracle(ChainCredit())), Oracle(ChainCredit(), ChainCredit())]
)
def test_a_problem_of_another_task_is_found_before_long_work(scorer: Any) -> None:
    known, other = next(iter(ChainProblems(ChainTask()))), MathProblem("How many?", "1", id="p7")
    check_known(scorer, [known, known], "data.train")
    with pytest.raises(ConfigError, match=r"data\.train: problem p7: scorer\.locate reads problems of data=chain"):
        check_known(scorer, [known, other], "data.train")
    check_known(Inverted(OarG()), [other], "data.train")
