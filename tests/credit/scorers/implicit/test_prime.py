"""PRIME against numpy, a bandit that is solved exactly, and GRPO-like advantages while its model has not learnt."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from support.toy import gpt2, rollouts_of, tools
from torch import Tensor

from oar_lightning.credit.assign import assign_credit
from oar_lightning.credit.gates import SignedGate
from oar_lightning.credit.scorers import Prime
from oar_lightning.credit.scorers.implicit import base, prime
from oar_lightning.credit.scorers.implicit.prime import whitened
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.types import Rollouts

SEQUENCES = [
    {"before": [3, 4, 5], "reasoning": [8, 9, 10], "answer": [13], "tail": [1]},
    {"before": [14], "reasoning": [15, 16], "answer": [22]},
    {"before": [3], "reasoning": [8], "answer": [7]},
    {"before": [3], "tail": [8]},
    {"before": [14, 2], "reasoning": [15, 16, 17], "answer": [22]},
    {"before": [6], "reasoning": [18, 19], "answer": [21]},
]


def given(rewards: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0, 1.0, 1.0), **changes: Any) -> Rollouts:
    """Two groups of three completions; the reference is the policy."""
    rollouts = rollouts_of(
        SEQUENCES, group_size=3, rewards=torch.tensor(rewards), advantages=torch.tensor([1.0, -0.5, -0.5, -1.0, 0.5, 0.5])
    )
    with torch.no_grad():
        model = gpt2(dropout=0.0)
        ref = token_logprobs(model, rollouts.token_ids, rollouts.attention_mask, rollouts.response_mask)[0]
    return dataclasses.replace(rollouts, **{"ref_logprobs": ref, **changes})


def scorer(**settings: Any) -> Prime:
    made = Prime(**{"lr": 1e-3, **settings})
    made.use(tools())
    return made


def numpy_prime(rollouts: Rollouts, q: np.ndarray, beta: float = 0.05) -> dict[tuple[int, int], float]:
    """Another transcription, row by row: (row, column) -> advantage."""
    rows = [np.flatnonzero(mask) for mask in rollouts.response_mask.numpy()]
    r = [beta * q[i, columns] for i, columns in enumerate(rows)]
    for one in r:
        one[-1] = 0.0
    top = max(abs(one[t:].sum()) for one in r for t in range(len(one)))
    r = [one / (top + 1e-6) for one in r]
    outcome, n = rollouts.rewards.double().numpy(), rollouts.group_size
    sums = []
    for i, one in enumerate(r):
        group = range(i // n * n, i // n * n + n)
        d = one * n / (n - 1) - sum(r[j].mean() for j in group) / (n - 1)
        g = np.zeros(len(one))
        g[-1] = outcome[i] - sum(outcome[j] for j in group if j != i) / (n - 1)
        total = 5 * d + 5 * g
        sums.append(np.array([total[t:].sum() for t in range(len(total))]))
    flat = np.concatenate(sums)
    values = [(one - flat.mean()) / math.sqrt(flat.var(ddof=1) + 1e-8) for one in sums]
    return {(i, int(c)): float(v) for i, columns in enumerate(rows) for c, v in zip(columns, values[i], strict=True)}


def assert_as(found: Tensor, expected: dict[tuple[int, int], float]) -> None:
    assert {(int(i), int(c)) for i, c in found.nonzero()} <= set(expected)
    for place, value in expected.items():
        assert float(found[place]) == pytest.approx(value, abs=2e-6)


def test_a_model_that_has_not_learnt_gives_the_outcomes_leave_one_out_advantages() -> None:
    rollouts = given()
    found = scorer()(gpt2(), rollouts)
    assert_as(found, numpy_prime(rollouts, np.zeros(rollouts.token_ids.shape)))
    expected = torch.tensor([1.0, -0.5, -0.5, -1.0, 0.5, 0.5])[:, None] * rollouts.response_mask  # R - mean of the others
    torch.testing.assert_close(found, whitened(expected.double(), rollouts.response_mask))


@pytest.mark.parametrize("update", ["after", "before"])
def test_scores_against_numpy(update: Any) -> None:
    """After one step phi has moved; `after` scores with what it was before the second."""
    rollouts, made = given(), scorer(update=update)
    made.learn(gpt2(), rollouts)
    q = (made.own.logprobs(rollouts) - rollouts.ref_logprobs).numpy()
    if update == "after":
        made(gpt2(), rollouts)  # of the first step: zeros
        made.learn(gpt2(), rollouts)
    assert np.abs(q).max() > 1e-3
    assert_as(made(gpt2(), rollouts), numpy_prime(rollouts, q))
    now = (made.own.logprobs(rollouts) - rollouts.ref_logprobs).numpy()
    assert_as(made(gpt2(), rollouts), numpy_prime(rollouts, now))  # an evaluation learns nothing and reads phi as it is


def test_the_rewards_of_a_solved_bandit_are_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """phi* = ref exp(R / beta) / Z over all completions of two tokens: beta sum_t log(phi* / ref) = R - beta log Z."""
    rng, beta, v = np.random.default_rng(0), 0.5, 3
    ref, rewards = rng.dirichlet(np.ones(v * v)).reshape(v, v), rng.normal(size=(v, v))
    tilted = ref * np.exp(rewards / beta)
    phi, z = tilted / tilted.sum(), tilted.sum()

    def by_token(joint: np.ndarray) -> Tensor:
        rows = [[0.0, math.log(joint[a].sum()), math.log(joint[a, b] / joint[a].sum())] for a in range(v) for b in range(v)]
        return torch.tensor(rows, dtype=torch.float64)

    sequences = [{"before": [9], "reasoning": [a], "tail": [b]} for a in range(v) for b in range(v)]
    rollouts = rollouts_of(sequences, rewards=torch.tensor(rewards.flatten()), ref_logprobs=by_token(ref))
    made = scorer(beta=beta)
    made.own.steps = 1
    monkeypatch.setattr(made.own, "logprobs", lambda part: by_token(phi))
    found = beta * made._log_ratios(rollouts)
    np.testing.assert_allclose(found.sum(1).numpy(), rewards.flatten() - beta * math.log(z), atol=1e-12)
    scores = made.scales(None, rollouts) * made._log_ratios(rollouts).sum(1)
    torch.testing.assert_close(scores, found.sum(1))


def test_groups_that_are_too_easy_or_too_hard_are_left_out() -> None:
    """2 of 5 and 1 of 5 are kept, 0 of 5 and 5 of 5 are not, and nothing depends on those."""
    sequences = [{"before": [3], "reasoning": [8 + i, 9, 10 + i], "tail": [1]} for i in range(5)]
    kept = [[1.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]
    rewards = torch.tensor([*kept[0], *[0.0] * 5, *kept[1], *[1.0] * 5])
    old = torch.zeros(20, 5)
    whole = rollouts_of(sequences * 4, group_size=5, rewards=rewards, advantages=rewards, ref_logprobs=old)
    part = whole.select(torch.tensor([*range(5), *range(10, 15)]))
    found, expected = [], []
    made, alone = scorer(), scorer()
    for _ in range(2):
        for one, rollouts, out in ((made, whole, found), (alone, part, expected)):
            one.learn(gpt2(), rollouts)
            out.append(one(gpt2(), rollouts))
    assert torch.equal(made.kept(whole), torch.tensor([True, False, True, False]).repeat_interleave(5))
    assert made.metrics["implicit_kept_frac"] == 0.5
    rows = made.kept(whole)
    torch.testing.assert_close(torch.stack(found)[:, rows], torch.stack(expected))
    assert not torch.stack(found)[:, ~rows].any()
    everything = scorer(lowest=0.0, highest=1.0)
    for _ in range(2):
        everything.learn(gpt2(), whole)
        out_of_all = everything(gpt2(), whole)
    assert out_of_all[~rows].any()


def test_nothing_to_learn_or_to_score() -> None:
    """No group is kept: the step moves nothing, counts nothing, and gives no advantage."""
    rollouts, made = given(rewards=(1.0,) * 6), scorer()
    made.learn(gpt2(), rollouts)
    assert made.own.steps == 0
    assert not made(gpt2(), rollouts).any()
    assert made.totals.means() == {}
    with pytest.raises(ValueError, match="scorer=prime compares with the policy that training began with"):
        made(gpt2(), dataclasses.replace(rollouts, ref_logprobs=None))
    with pytest.raises(ValueError, match=r"lowest <= highest, got lowest=0\.9, highest=0\.8"):
        Prime(lowest=0.9)


def test_completions_without_a_reward_teach_nothing() -> None:
    """They count as the mean of their group, and phi does not learn from them."""
    unknown = given(rewards=(1.0, 0.0, math.nan, 0.0, 1.0, 1.0))
    made = scorer()
    made.learn(gpt2(), unknown)
    assert made._learned._sums["credit/implicit_loss"][1] == 5
    found = made(gpt2(), unknown)
    assert found.isfinite().all()
    alone = found[2][unknown.response_mask[2]]
    assert float(alone.std()) == pytest.approx(0, abs=1e-6)


class Ranks:
    """Two threads that talk as ranks do."""

    def __init__(self) -> None:
        self.met, self.said, self.own = threading.Barrier(2, timeout=60), [None, None], threading.local()

    def all_gather(self, value: Any) -> list[Any]:
        self.said[self.own.rank] = value
        self.met.wait()
        both = list(self.said)
        self.met.wait()
        return both

    def add_up(self, tensors: Any) -> None:
        for own, *others in zip(tensors, *self.all_gather([t.clone() for t in tensors]), strict=True):
            own.copy_(sum(others))

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        def of_rank(rank: int) -> Any:
            self.own.rank = rank
            return work(rank)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(of_rank, (0, 1)))


def test_two_ranks_score_and_learn_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts, model, one = given(), gpt2(), scorer()
    for _ in range(2):
        one.learn(model, rollouts)
        expected = one(model, rollouts)
    ranks, copies = Ranks(), [scorer(), scorer()]
    for module in (base, prime):
        monkeypatch.setattr(module, "all_gather", ranks.all_gather)
    monkeypatch.setattr("oar_lightning.credit.own_model.add_up", ranks.add_up)

    def work(rank: int) -> Tensor:
        rows = torch.arange(3) + 3 * rank
        part, whole = dataclasses.replace(rollouts.select(rows), group_size=3), torch.zeros_like(expected[:3])
        for _ in range(2):
            copies[rank].learn(model, part)
            whole[:, rollouts.columns(rows)] = copies[rank](model, part)
        return whole

    torch.testing.assert_close(torch.cat(ranks.run(work)), expected, rtol=1e-6, atol=1e-7)
    for name, value in one.own.state_dict()["weights"].items():
        first, second = (copy.own.state_dict()["weights"][name] for copy in copies)
        assert torch.equal(first, second)
        torch.testing.assert_close(first, value, rtol=1e-6, atol=1e-9)


def test_a_rank_without_groups_to_use_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts, model = given(rewards=(1.0, 1.0, 1.0, 0.0, 1.0, 1.0)), gpt2()
    ranks, copies = Ranks(), [scorer(), scorer()]
    for module in (base, prime):
        monkeypatch.setattr(module, "all_gather", ranks.all_gather)
    monkeypatch.setattr("oar_lightning.credit.own_model.add_up", ranks.add_up)

    def work(rank: int) -> Tensor:
        part = dataclasses.replace(rollouts.select(torch.arange(3) + 3 * rank), group_size=3)
        copies[rank].learn(model, part)
        return copies[rank](model, part)

    found = ranks.run(work)
    assert [bool(scores.any()) for scores in found] == [False, True]
    first, second = (copy.own.state_dict()["weights"] for copy in copies)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert copies[0].own.steps == 1


def test_the_gate_takes_its_scores_as_advantages() -> None:
    rollouts, made = given(), scorer()
    credit = assign_credit(gpt2(), rollouts, made, SignedGate())
    torch.testing.assert_close(credit.advantages.double(), made(gpt2(), rollouts))
