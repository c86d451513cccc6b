"""Which steps explore: by hand, and against a loop over steps as they are defined."""

from __future__ import annotations

import itertools
import statistics

import torch
from support.fixtures import LengthReward, make_stage, tiny_policy

from oar_lightning.credit.step_classes import exploring, with_exploring_steps
from oar_lightning.rollout import SamplingConfig
from oar_lightning.types import Credit, MathProblem


def tensors(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_much_entropy_and_little_credit_by_hand() -> None:
    """Steps of (entropy, score): (1, 0.1) explores; (2, -3) has much credit, (0.2, 0) little entropy, (0.1, 2) both."""
    scores = tensors([0.1, 0.1, -3, -3, 9], [0, 0, 0, 2, 9])
    entropy = tensors([0.5, 1.5, 2, 2, 9], [0.1, 0.2, 0.3, 0.1, 9])
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[:, 4] = False
    expected = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
    assert torch.equal(exploring(scores, entropy, mask, 2), expected)
    alone = exploring(scores, entropy, mask, 1)
    assert alone.tolist() == [[False] * 5, [True, True, True, False, False]], "each row its own group"


def test_empty_rows_and_single_steps() -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    assert not exploring(torch.zeros(2, 3), torch.zeros(2, 3), mask, 2).any()
    mask[0, 1] = True
    assert torch.equal(exploring(torch.ones(2, 3), torch.ones(2, 3), mask, 2), mask), "a single step is in every half"


def test_scores_that_are_no_numbers_leave_the_others_of_their_group_alone() -> None:
    scores = tensors([0.1, 0.1, -3, -3], [0, 0, 0, 2], [0.5, 0.5, float("nan"), 0.5])
    entropy = tensors([0.5, 1.5, 2, 2], [0.1, 0.2, 0.3, 0.1], [9, 9, 9, 9])
    found = exploring(scores, entropy, torch.ones(3, 4, dtype=torch.bool), 3)
    assert found.any()
    assert not found[2, 2]


def test_a_completion_without_scores_changes_nothing_for_the_others() -> None:
    scores, entropy = tensors([1, 1, 2, 2, 3, 3]), tensors([0.1, 0.1, 0.5, 0.5, 0.9, 0.9])
    alone = exploring(scores, entropy, torch.ones(1, 6, dtype=torch.bool), 1)
    assert alone.tolist() == [[False, False, True, True, False, False]]
    both = torch.cat([scores, torch.full_like(scores, float("nan"))]), torch.cat([entropy, torch.full_like(entropy, 5.0)])
    found = exploring(*both, torch.ones(2, 6, dtype=torch.bool), 2)
    assert torch.equal(found, torch.cat([alone, torch.zeros_like(alone)]))
    assert not exploring(both[0][1:], both[1][1:], torch.ones(1, 6, dtype=torch.bool), 1).any()


def test_completions_that_are_not_taught_are_classed_and_keep_advantage_0() -> None:
    """With a gate that adds scores to advantages, in a group of equal rewards."""
    policy = tiny_policy()
    stage, sampling = make_stage(policy, LengthReward()), SamplingConfig(max_new_tokens=8)
    rollouts = stage(policy.model, [MathProblem("1 + 1 =", "2")], 2, sampling, [3])
    scores = torch.arange(float(rollouts.token_ids.numel())).view_as(rollouts.token_ids)
    credit = Credit(torch.ones_like(scores), scores, torch.ones_like(scores))
    found = with_exploring_steps(policy.model, rollouts, credit, torch.tensor([1]))
    assert not found.advantages[0].any()
    assert found.advantages[1].all()
    assert found.entropy_factor is not None
    assert 0 < int(found.entropy_factor[0].sum()) < int(rollouts.reasoning_mask[0].sum())


def test_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(-2, 3, (6, 12), generator=generator).double()
    entropy = torch.rand(6, 12, generator=generator, dtype=torch.float64)
    mask = torch.rand(6, 12, generator=generator) < 0.8
    found = exploring(scores, entropy, mask, 3)
    assert not found[~mask].any()
    for start in (0, 3):
        steps = []
        for row in range(start, start + 3):
            columns = mask[row].nonzero().flatten().tolist()
            for _, members in itertools.groupby(columns, key=scores[row].tolist().__getitem__):
                run = list(members)
                steps.append((row, run, statistics.fmean(entropy[row, run].tolist()), abs(float(scores[row, run[0]]))))
        middle = statistics.median([step[2] for step in steps]), statistics.median([step[3] for step in steps])
        assert 0 < sum(map(len, (run for _, run, h, c in steps if h >= middle[0] and c <= middle[1]))) < int(mask.sum())
        for row, run, h, c in steps:
            assert found[row, run].tolist() == [h >= middle[0] and c <= middle[1]] * len(run)
