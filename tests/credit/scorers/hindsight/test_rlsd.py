"""RLSD against values worked out by hand, a joint distribution of hints and completions, and log-probabilities read alone."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from support.fixtures import fit, make_module, make_stage, tiny_policy
from support.toy import gpt2, rollouts_of, tools
from torch import Tensor

from oar_lightning.common.paths import conf_dir
from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import DirectGate
from oar_lightning.credit.scorers import Uniform
from oar_lightning.credit.scorers.hindsight import Rlsd
from oar_lightning.credit.scorers.hindsight.base import weights
from oar_lightning.credit.teachers import PolicyItself
from oar_lightning.data.hints import TEMPLATE
from oar_lightning.rollout.continuations import Reprompter
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.types import MathProblem, Rollouts

GATE = DirectGate(strength=0.5, low=0.8, high=1.2)
HINT_TOKEN = 30


def second_prompts(rollouts: Rollouts, questions: Sequence[str]) -> Rollouts:
    """One token for each character of a question."""
    rows = []
    for row, question in enumerate(questions):
        ids = rollouts.token_ids[row]
        rows.append(
            {
                "before": [HINT_TOKEN + ord(c) % 10 for c in question],
                "reasoning": ids[rollouts.reasoning_mask[row]].tolist(),
                "answer": ids[rollouts.answer_mask[row]].tolist(),
                "tail": ids[rollouts.response_mask[row] & ~rollouts.reasoning_mask[row] & ~rollouts.answer_mask[row]].tolist(),
            }
        )
    return rollouts_of(rows, group_size=rollouts.group_size, advantages=rollouts.advantages, problems=rollouts.problems)


def lent(scorer: Rlsd) -> Rlsd:
    scorer.use(tools(reprompt=second_prompts))
    return scorer


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "expected"),
    [(1, 0.1, 1.052585), (1, 1, 1.1), (-1, 0.1, -0.952419), (-1, -1, -1.1), (1, -1, 0.9), (0, 3, 0)],
)
def test_token_advantages_of_the_published_function(advantage: float, log_ratio: float, expected: float) -> None:
    rollouts = rollouts_of([{"before": [1], "tail": [2]}], advantages=torch.tensor([advantage], dtype=torch.float64))
    scores = weights(rollouts.advantages.sign(), torch.tensor([[0.0, log_ratio]], dtype=torch.float64))  # type: ignore[union-attr]
    assert float(GATE(scores, rollouts).advantages[0, 1]) == pytest.approx(expected, abs=5e-7)


def test_weights_stay_finite() -> None:
    found = weights(torch.tensor([1.0, -1.0]), torch.full((2, 1), 1e4))
    assert found.flatten().tolist() == pytest.approx([np.exp(20), np.exp(-20)])


SEQUENCES = [
    {"before": [3, 4, 5], "reasoning": [8, 9, 10], "answer": [13], "tail": [1]},
    {"before": [3, 4, 5], "reasoning": [15, 16], "answer": [22]},
    {"before": [6, 7], "reasoning": [8, 8], "answer": [7]},
    {"before": [6, 7], "reasoning": [17], "tail": [8]},
]
PROBLEMS = (MathProblem("abc", "12"), MathProblem("abc", "12"), MathProblem("de", "7"), MathProblem("de", ""))


def given(**changes: Any) -> Rollouts:
    values = {"group_size": 2, "problems": PROBLEMS, "advantages": torch.tensor([1.0, -1.0, 0.0, 0.5], dtype=torch.float64)}
    return rollouts_of(SEQUENCES, **values | changes)


@pytest.mark.parametrize("region", ["response", "reasoning"])
def test_scores_against_log_probabilities_read_alone(region: str) -> None:
    """Rows without advantage (2) or hint (3) keep 1; the second is counted."""
    model, rollouts = gpt2(dropout=0.0), given()
    scorer = lent(Rlsd(region=region))  # type: ignore[arg-type]
    scores = scorer(model, rollouts)
    mask = rollouts.response_mask if region == "response" else rollouts.reasoning_mask

    def alone(prompt: list[int], row: int) -> Tensor:
        ids = torch.tensor([prompt + rollouts.token_ids[row, rollouts.response_mask[row]].tolist()])
        log_p = model(input_ids=ids).logits[0].log_softmax(-1)
        return log_p[torch.arange(len(prompt) - 1, ids.shape[1] - 1), ids[0, len(prompt) :]].detach()

    for row, sign in ((0, 1), (1, -1)):
        told = [HINT_TOKEN + ord(c) % 10 for c in "abc\nThe answer is 12."]
        expected = (sign * (alone(told, row) - alone([3, 4, 5], row))).exp()
        inside = mask[row][rollouts.response_mask[row]]
        torch.testing.assert_close(scores[row, mask[row]], expected[inside], rtol=1e-9, atol=0)
    assert torch.equal(scores[2:], mask[2:].double())
    assert not scores[~mask].any()
    assert scorer.metrics["unread_frac"] == 0.25
    read = 2 * len("abc\nThe answer is 12.") + 8 + 2 * 3 + 8
    assert scorer.metrics["forward_equivalents"] == read / int(rollouts.attention_mask.sum())


def test_a_hint_that_tells_nothing_is_grpo_bit_for_bit() -> None:
    """Kept states or not, the other prompt is the same one then."""
    policy = tiny_policy()
    ids = [{"before": policy.tokenizer(p.question + "\n").input_ids, "reasoning": [40 + i, 41, 42], "answer": [50]}
           for i, p in enumerate(PROBLEMS)]  # fmt: skip
    rollouts = rollouts_of(ids, group_size=2, problems=PROBLEMS, advantages=torch.tensor([1.0, -1.0, 0.3, -0.3]))
    scorer = Rlsd(teacher=PolicyItself())
    scorer.use(tools(reprompt=Reprompter(make_stage(policy))))
    found, read = scorer.of_hints(policy.model, rollouts, [(row, "") for row in range(4)])
    assert read == 4
    assert not found.any()
    credit = GATE(weights(torch.ones(4), found), rollouts)
    grpo = assign_credit(None, rollouts, Uniform(), DirectGate(strength=0))
    assert torch.equal(credit.advantages, grpo.advantages)
    assert scorer.of_hints(policy.model, rollouts, [(row, "7") for row in range(4)])[0].any()


class Joint(Rlsd):
    """Reads a table of p(r, y) instead of a model: hints 0 and 1, two tokens of three ids."""

    table = np.random.default_rng(0).dirichlet(np.ones(18)).reshape(2, 3, 3)

    def _logprobs(self, model: Any, rollouts: Rollouts) -> Tensor:
        out = torch.zeros(rollouts.token_ids.shape, dtype=torch.float64)
        for row, mask in enumerate(rollouts.response_mask):
            first = int(rollouts.token_ids[row, rollouts.attention_mask[row]][0])
            p = self.table[first - 20] if first >= 20 else self.table.sum(0)
            y, z = rollouts.token_ids[row, mask].tolist()
            out[row, mask] = torch.tensor(np.log([p[y].sum() / p.sum(), p[y, z] / p[y].sum()]))
        return out


def joint() -> tuple[Joint, Rollouts, list[tuple[int, int]]]:
    texts = list(itertools.product(range(3), range(3)))
    rollouts = rollouts_of(
        [{"before": [9], "reasoning": list(y)} for y in texts],
        problems=(MathProblem("", "1"),) * 9,
        advantages=torch.ones(9, dtype=torch.float64),
    )

    def reprompt(part: Rollouts, questions: Sequence[str]) -> Rollouts:
        ids = part.token_ids.clone()
        ids[:, 0] = torch.tensor([20 + int(q[-2]) for q in questions])
        return dataclasses.replace(part, token_ids=ids)

    scorer = Joint()
    scorer.use(tools(reprompt=reprompt))
    return scorer, rollouts, texts


def test_log_ratios_telescope_to_what_the_text_tells_of_the_hint() -> None:
    """exp(sum of D) = P(r | y) / P(r), and after one token P(r | y_1) / P(r)."""
    scorer, rollouts, texts = joint()
    model = gpt2()
    ratios, _ = scorer.of_hints(model, rollouts, [(row, f"{1}.") for row in range(9)])
    table, hint = scorer.table, scorer.table[1]
    for row, (y, z) in enumerate(texts):
        d = ratios[row, rollouts.response_mask[row]]
        assert float(d.sum().exp()) == pytest.approx(hint[y, z] / table[:, y, z].sum() / hint.sum(), rel=1e-9)
        assert float(d[0].exp()) == pytest.approx(hint[y].sum() / table[:, y].sum() / hint.sum(), rel=1e-9)


def test_mean_weights_under_the_policy() -> None:
    """1 where A > 0; 1 + chi squared of the policy from the hinted one where A < 0."""
    scorer, rollouts, _ = joint()
    p, r = scorer.table.sum(0).sum(1), scorer.table[1].sum(1) / scorer.table[1].sum()
    tokens = {}
    for sign in (1.0, -1.0):
        scores = scorer(gpt2(), dataclasses.replace(rollouts, advantages=torch.full((9,), sign, dtype=torch.float64)))
        tokens[sign] = scores[torch.arange(9), 1][::3].numpy()  # of the first token, for each of its ids
    assert tokens[1.0] @ p == pytest.approx(1, rel=1e-9)
    assert tokens[-1.0] @ p == pytest.approx(1 + ((p - r) ** 2 / r).sum(), rel=1e-9)


def test_a_text_beyond_the_models_positions_is_not_read() -> None:
    model, rollouts = gpt2(dropout=0.0), given(problems=(MathProblem("x" * 60, "12"), *PROBLEMS[1:]))
    scorer = lent(Rlsd())
    scores = scorer(model, rollouts)
    assert torch.equal(scores[0], rollouts.response_mask[0].double())
    assert (scores[1] != rollouts.response_mask[1]).any()
    assert scorer.metrics["unread_frac"] == 0.5
    nothing = given(advantages=torch.zeros(4, dtype=torch.float64))
    assert torch.equal(scorer(model, nothing), nothing.response_mask.float())
    assert scorer.metrics == {"forward_equivalents": 0, "unread_frac": 0}


def test_a_lagged_teacher_reads_the_hints_alone() -> None:
    """What it says is compared with what the policy of the step says; a resumed scorer goes on with the same copy."""
    rollouts, scorer, itself = given(), lent(Rlsd()), lent(Rlsd(teacher=PolicyItself()))
    old, new = gpt2(seed=1, dropout=0.0), gpt2(seed=2, dropout=0.0)
    moved, asked = gpt2(seed=1, dropout=0.0), [0, 1]
    hints = [(row, "The answer is 12.") for row in asked]
    assert torch.equal(scorer(moved, rollouts), itself(moved, rollouts))
    moved.load_state_dict(new.state_dict())
    resumed = lent(Rlsd())
    resumed.load_state_dict(scorer.state_dict())
    told, plain = itself.told(old, rollouts, hints).logprobs, itself.untold(new, rollouts, torch.tensor(asked))
    expected = weights(torch.tensor([1.0, -1.0]), told - plain) * rollouts.response_mask[:2]
    for one in (scorer, resumed):
        found = one(moved, dataclasses.replace(rollouts, step=9))
        torch.testing.assert_close(found[:2], expected, rtol=1e-9, atol=0)
    assert torch.equal(scorer(moved, dataclasses.replace(rollouts, step=10)), itself(moved, rollouts))
    assert itself.state_dict() == {}
    with pytest.raises(ValueError, match="keeps no state"):
        itself.load_state_dict(scorer.state_dict())


@pytest.mark.parametrize("template", ["{hint}", "{question}{hint}{more}", "{question} {", "{question!r}{hint}"])
def test_what_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"scorer\.template must hold \{question\} and \{hint\} and no other field"):
        Rlsd(template=template)
    assert Rlsd(template="{hint} {{}}{question}" + TEMPLATE)


def test_its_experiment_trains() -> None:
    """One step with the scorer and the gate of the experiment's file; the weights change what is learned."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(conf_dir()), version_base=None):
        cfg = compose("config", ["+experiment=rlsd"])
    assert cfg.name == "rlsd"
    scorer, gate = instantiate(cfg.scorer), instantiate(cfg.gate)
    assert (type(scorer), gate) == (Rlsd, GATE)
    rows = fit(make_module(tiny_policy(), scorer, gate=gate, update=UpdatePlan(problems=2, group_size=4)), 1).rows
    last = rows[max(rows)]
    assert 0.5 < last["credit/forward_equivalents"] < 3
    assert last["credit/unread_frac"] == 0
    assert 0.9 <= last["credit/mass"] <= 1.1
    assert last["credit/mass"] != 1
