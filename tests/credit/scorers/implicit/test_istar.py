"""iStar against numpy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from support.toy import gpt2, tools

from oar_lightning.credit.scorers import IStar
from oar_lightning.credit.scorers.implicit.istar import step_rewards, step_rloo
from oar_lightning.credit.segments import FixedLength

from .test_prime import given


def scorer(**settings: Any) -> IStar:
    made = IStar(FixedLength(2), **{"lr": 1e-3, **settings})
    made.use(tools())
    return made


def with_old(**changes: Any) -> Any:
    rollouts = given(**changes)
    return dataclasses.replace(rollouts, old_logprobs=rollouts.ref_logprobs, ref_logprobs=None)


def numpy_istar(rollouts: Any, q: np.ndarray, beta: float = 0.05, weight: float = 1.0, length: int = 2) -> np.ndarray:
    rows = [np.flatnonzero(mask) for mask in rollouts.response_mask.numpy()]
    steps = [[columns[k : k + length] for k in range(0, len(columns), length)] for columns in rows]
    top = max(abs(beta * q[i, cut[t:]].sum()) for i, cuts in enumerate(steps) for cut in cuts for t in range(len(cut)))
    outcome, n, out = rollouts.rewards.double().numpy(), rollouts.group_size, np.zeros(q.shape)
    for start in range(0, len(rows), n):
        group = range(start, start + n)
        rewards = {(i, k): beta * q[i, cut].sum() / (top + 1e-6) for i in group for k, cut in enumerate(steps[i])}
        for (i, k), r in rewards.items():
            others = [v for place, v in rewards.items() if place != (i, k)]
            baseline = np.mean([outcome[j] for j in group if j != i])
            out[i, steps[i][k]] = outcome[i] - baseline + weight * (r - np.mean(others))
    return out


def test_a_model_that_is_the_old_policy_gives_the_outcomes_leave_one_out_advantages() -> None:
    rollouts = with_old()
    expected = torch.tensor([1.0, -0.5, -0.5, -1.0, 0.5, 0.5])[:, None] * rollouts.response_mask
    torch.testing.assert_close(scorer()(gpt2(), rollouts), expected.double())


@pytest.mark.parametrize("update", ["after", "before"])
def test_scores_against_numpy(update: Any) -> None:
    rollouts, made = with_old(), scorer(update=update, step_coef=0.7)
    made.learn(gpt2(), rollouts)
    if update == "after":
        made(gpt2(), rollouts)
    q = (made.own.logprobs(rollouts) - rollouts.old_logprobs).numpy()
    if update == "after":
        made.learn(gpt2(), rollouts)
    assert np.abs(q).max() > 1e-3
    np.testing.assert_allclose(made(gpt2(), rollouts).numpy(), numpy_istar(rollouts, q, weight=0.7), atol=2e-6)


@pytest.mark.parametrize("tokens", [4096, 1])
def test_its_gradient_is_that_of_all_pairs_at_once(tokens: int) -> None:
    """Chunks hold single completions; pairs are of whole groups. A plain model and AdamW are the truth."""
    rollouts, made = with_old(), scorer(token_budget=tokens, beta=0.5)
    made.learn(gpt2(), rollouts)
    model = gpt2(dropout=0.0).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    ids, steps = rollouts.token_ids, torch.tensor([3, 2, 1, 1, 2, 2])
    attention = rollouts.attention_mask.long()
    places = (attention.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=attention, position_ids=places).logits[:, :-1]
    chosen = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    q = (chosen - rollouts.old_logprobs[:, 1:]).masked_fill(~rollouts.response_mask[:, 1:], 0.0)
    s = 0.5 * q.sum(1) / steps
    pairs = [(0, 1), (0, 2), (4, 3), (5, 3)]
    (sum(-torch.nn.functional.logsigmoid(s[a] - s[b]) for a, b in pairs) / 4).backward()
    optimizer.step()
    for name, value in made.own.state_dict()["weights"].items():
        torch.testing.assert_close(value, model.get_parameter(name).detach(), rtol=1e-6, atol=1e-8)


def test_a_constant_on_all_steps_of_a_group_changes_nothing() -> None:
    rng = torch.Generator().manual_seed(0)
    numbers = torch.tensor([[-1, 0, 0, 1, 2], [-1, 0, 1, 1, -1], [-1, 0, -1, -1, -1], [0, 0, 1, -1, -1]])
    steps = torch.randn(4, 3, generator=rng, dtype=torch.float64)
    moved = steps.clone()
    moved[:2] += 3.0
    torch.testing.assert_close(step_rloo(moved, numbers, 2), step_rloo(steps, numbers, 2))
    single = step_rloo(steps[2:3].expand(2, 3), torch.tensor([[0, 0], [-1, -1]]), 2)
    assert not single.any(), "the only step of a group has nothing to be compared with"


def test_rewards_of_steps() -> None:
    """Sums, over the largest |sum of a step's last tokens|: 3, of the second token of the first step."""
    rewards = torch.tensor([[0.0, -2.0, 3.0, 1.0, 0.5], [9.0, 1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    numbers = torch.tensor([[-1, 0, 0, 1, 1], [-1, 0, 1, -1, -1]])
    expected = torch.tensor([[1.0, 1.5], [1.0, 1.0]], dtype=torch.float64) / (3 + 1e-6)
    torch.testing.assert_close(step_rewards(rewards, numbers), expected)
    assert step_rewards(rewards[:0], numbers[:0]).shape == (0, 1)


def test_groups_without_pairs_teach_nothing() -> None:
    rollouts, made = with_old(rewards=(1.0,) * 3 + (0.0,) * 3), scorer()
    made.learn(gpt2(), rollouts)
    assert made.own.steps == 0
    assert not made(gpt2(), rollouts).any()
    with pytest.raises(ValueError, match="scorer=istar compares with the policy that sampled"):
        made(gpt2(), dataclasses.replace(rollouts, old_logprobs=None))
