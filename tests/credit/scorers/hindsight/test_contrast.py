"""Contrasts of hints against log-probabilities read alone, and what must not change them."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from support.fixtures import fit, make_module, tiny_policy
from support.toy import gpt2, padded, rollouts_of, tools
from torch import Tensor

from oar_lightning.common.paths import conf_dir
from oar_lightning.credit.gates import ContrastGate
from oar_lightning.credit.hints import completion_hint, siblings
from oar_lightning.credit.scorers.hindsight import Contrast
from oar_lightning.credit.teachers import PolicyItself
from oar_lightning.data.hints import hinted
from oar_lightning.objective.loss import LossConfig
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.types import MathProblem, Rollouts

SEQUENCES = [{"before": [3, 4, 5], "reasoning": [8 + k, 9 + 2 * k, *range(10, 10 + k)], "answer": [20 + k]} for k in range(5)]
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0], dtype=torch.float64)


def code(question: str) -> list[int]:
    """Two tokens for a prompt."""
    return [10 + zlib.crc32(question.encode()) % 15, 25 + zlib.crc32(question.encode()[::-1]) % 15]


def reprompt(rollouts: Rollouts, questions: Sequence[str]) -> Rollouts:
    ids, attention = rollouts.token_ids.clone(), rollouts.response_mask.clone()
    for row, question in enumerate(questions):
        start = int(rollouts.response_mask[row].long().argmax())
        ids[row, start - 2 : start] = torch.tensor(code(question))
        attention[row, start - 2 : start] = True
    return dataclasses.replace(rollouts, token_ids=ids, attention_mask=attention)


def given(advantages: Tensor = SIGNS) -> Rollouts:
    return rollouts_of(SEQUENCES, group_size=5, advantages=advantages, problems=(MathProblem("q", "1"),) * 5)


def make(**knobs: Any) -> Contrast:
    scorer = Contrast(**knobs)
    scorer.use(tools(reprompt=reprompt))
    return scorer


def test_siblings_go_round_and_leave_the_row_out() -> None:
    assert [siblings(given(), row, "wrong") for row in (0, 1, 3)] == [[1, 3, 4], [3, 4], [4, 1]]
    assert [siblings(given(), row, "correct") for row in (0, 1, 2, 4)] == [[2], [2, 0], [0], [0, 2]]
    second = rollouts_of([*SEQUENCES[:2], *SEQUENCES[:2]], group_size=2, advantages=torch.tensor([1.0, -1.0, 0.0, 0.5]))
    assert [siblings(second, row, "wrong") for row in (0, 2, 3)] == [[1], [], []]


def test_a_sibling_of_the_same_text_tells_nothing() -> None:
    twins = dataclasses.replace(given(), completions=("a", "b", " a", "b\n", "c"))
    assert [siblings(twins, row, "correct") for row in (0, 1, 2)] == [[], [2], []]
    assert [siblings(twins, row, "wrong") for row in (0, 1, 3, 4)] == [[1, 4], [4], [4], [1]]


@pytest.mark.parametrize("samples", [1, 4])
def test_contrasts_against_log_probabilities_read_alone(samples: int) -> None:
    model, rollouts = gpt2(dropout=0.0), given()
    scorer = make(samples=samples)
    scores = scorer(model, rollouts)

    def alone(row: int, other: int) -> Tensor:
        told = code(hinted(rollouts.problems[row], completion_hint(rollouts, other)).question)
        ids = torch.tensor([told + rollouts.token_ids[row, rollouts.response_mask[row]].tolist()])
        log_p = model(input_ids=ids).logits[0].log_softmax(-1)
        return log_p[torch.arange(1, ids.shape[1] - 1), ids[0, 2:]].detach()

    for row in range(5):
        right, wrong = ([j for k in range(1, 5) if SIGNS[j := (row + k) % 5] == side] for side in (1, -1))
        against = torch.stack([alone(row, j).exp() for j in wrong[:samples]]).mean(0)
        expected = alone(row, right[0]) - against.log()
        torch.testing.assert_close(scores[row, rollouts.response_mask[row]], expected, rtol=1e-9, atol=1e-12)
    assert not scores[~rollouts.response_mask].any()
    assert scorer.metrics["unread_frac"] == 0
    weights = make(samples=samples, weights=True)(model, rollouts)
    torch.testing.assert_close(weights, (SIGNS[:, None] * scores).exp() * rollouts.response_mask, rtol=1e-9, atol=0)


def test_groups_padding_and_chunks_do_not_matter() -> None:
    model, rollouts = gpt2(), given()
    expected = make()(model, rollouts)
    moved = make(token_budget=1)(model, padded(rollouts, 2, 3))
    torch.testing.assert_close(moved[:, 2:-3], expected, rtol=1e-7, atol=1e-12)
    twice = rollouts.select(torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 4]))
    torch.testing.assert_close(make()(model, twice), expected.repeat(2, 1), rtol=1e-7, atol=1e-12)


def test_equal_hints_cancel() -> None:
    """A right completion that reads like the wrong ones says nothing."""
    rollouts = dataclasses.replace(given(), completions=("the same",) * 5)
    assert make(samples=1)(gpt2(), rollouts).abs().max() < 1e-12


CONTENT = {"good": 0.8, "bad": 0.3, "worse": 0.1}


class Factorised(Contrast):
    """Reads a table: the first token depends on what a hint says, the others on how often it says please."""

    def _logprobs(self, model: Any, rollouts: Rollouts) -> Tensor:
        out = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64)
        for row, problem in enumerate(rollouts.problems):
            *_, content, please = problem.question.split("|")
            place = rollouts.response_mask[row].nonzero().flatten()
            out[row, place] = math.log(0.5 - 0.1 * please.count("please"))
            out[row, place[0]] = math.log(CONTENT[content])
        return out


def test_what_all_hints_share_cancels() -> None:
    """The same sentence after right and wrong hints; 0.8 against the mean of 0.3, 0.1 and 0.3."""

    def told(sentence: str) -> Tensor:
        scorer = Factorised(teacher=PolicyItself(), template="{question}{hint}" + sentence)
        scorer.use(tools(reprompt=lambda part, questions: dataclasses.replace(
            part, problems=tuple(MathProblem(q, "") for q in questions))))  # fmt: skip
        texts = tuple(f"{row}: |{word}|" for row, word in enumerate(("good", "bad", "good", "worse", "bad")))
        return scorer(gpt2(), dataclasses.replace(given(), completions=texts))

    plain = told("")
    assert torch.equal(told(" please"), plain)
    places = given().response_mask[0].nonzero().flatten()
    assert plain[0, places].tolist() == pytest.approx([math.log(0.8 / ((0.3 + 0.1 + 0.3) / 3)), *[0] * (len(places) - 1)])


@pytest.mark.parametrize(
    ("advantages", "unread"), [((1, -1, -1, -1, -1), 0.2), ((1, 1, 1, 1, -1), 0.2), ((1, -1, 0, 0, 0), 0.4), ((0,) * 5, 0)]
)
def test_a_completion_without_others_of_either_outcome_scores_nothing(advantages: tuple[int, ...], unread: float) -> None:
    scorer = make()
    signs = torch.tensor(advantages, dtype=torch.float64)
    scores = scorer(gpt2(), given(signs))
    assert scorer.metrics["unread_frac"] == pytest.approx(unread)
    lone = [row for row in range(5) if sum(signs == signs[row]) == 1 or signs[row] == 0]
    assert not scores[lone].any()
    assert int(scores.any(1).sum()) == 5 - len(lone)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rlcsd", "rlsd_contrast"])
def test_its_experiments_train(name: str) -> None:
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(conf_dir()), version_base=None):
        cfg = compose("config", [f"+experiment={name}"])
    scorer, gate, loss = instantiate(cfg.scorer), instantiate(cfg.gate), instantiate(cfg.loss)
    assert isinstance(scorer, Contrast)
    assert scorer.samples == 4
    assert isinstance(loss, LossConfig)
    if name == "rlcsd":
        assert gate == ContrastGate(tau=0.02, strength=0.5, bound=2.0, least=0.02, eta=1.0)
    update = UpdatePlan(problems=2, group_size=4)
    rows = fit(make_module(tiny_policy(), scorer, gate=gate, update=update, loss=loss), 1).rows
    last = rows[max(rows)]
    assert last["credit/forward_equivalents"] > 0
    assert last["credit/unread_frac"] < 1
