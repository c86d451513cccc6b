"""Which steps explore: by hand, and against a loop over steps as they are defined."""

from __future__ import annotations

import itertools
import statistics

import torch

from oar_lightning.credit.step_classes import exploring


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
