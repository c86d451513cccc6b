"""The recursion against enumeration of all ways in which tokens can change."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from oar_lightning.credit.scorers.total_effect.recursion import change_probability, total_effects


def transcribed(changes: np.ndarray, reasoning: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """The formula, token by token."""
    effects = np.zeros(len(changes))
    for t in reversed(range(len(changes))):
        if reasoning[t]:
            kept = np.prod([1 - changes[t, s] for s in range(t + 1, len(changes)) if answer[s]])
            later = [1 - changes[t, s] * effects[s] for s in range(t + 1, len(changes)) if reasoning[s]]
            effects[t] = 1 - kept * np.prod(later)
    return effects


def random_changes(seed: int, size: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    changes = torch.rand(3, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).triu(1)
    reasoning = torch.tensor([[1] * 5 + [0, 0], [0, 1, 1, 1, 0, 0, 0], [0] * 7]).bool()
    answer = torch.tensor([[0] * 6 + [1], [0, 0, 0, 0, 0, 1, 1], [0] * 7]).bool()
    return changes, reasoning, answer


@pytest.mark.parametrize("seed", range(3))
def test_transcription(seed: int) -> None:
    changes, reasoning, answer = random_changes(seed)
    found = total_effects(changes, reasoning, answer)
    for i in range(3):
        expected = transcribed(changes[i].numpy(), reasoning[i].numpy(), answer[i].numpy())
        np.testing.assert_allclose(found[i].numpy(), expected, rtol=1e-12, atol=1e-15)
    assert ((found >= 0) & (found <= 1)).all()
    assert not found[~reasoning].any()


def test_on_a_tree_it_is_the_probability_that_the_answer_changes() -> None:
    """Where each token is read by one later token only, independence holds: enumerate which edges carry a change."""
    edges = {(0, 2): 0.5, (1, 2): 0.8, (2, 3): 0.9, (3, 5): 0.7, (4, 5): 0.25}
    changes = torch.zeros(1, 6, 6, dtype=torch.float64)
    for edge, probability in edges.items():
        changes[0][edge] = probability
    found = total_effects(changes, torch.tensor([[True] * 5 + [False]]), torch.tensor([[False] * 5 + [True]]))[0]
    for begin in range(5):
        total = 0.0
        for carried in itertools.product([False, True], repeat=len(edges)):
            probability = np.prod([p if c else 1 - p for c, p in zip(carried, edges.values(), strict=True)])
            changed = {begin}
            for (a, b), c in sorted(zip(edges, carried, strict=True)):
                changed |= {b} if c and a in changed else set()
            total += probability * (5 in changed)
        assert float(found[begin]) == pytest.approx(total, abs=1e-12)


def test_a_change_is_what_a_maximal_coupling_leaves() -> None:
    p, q = torch.tensor([0.5, 0.5, 1e-3]).log(), torch.tensor([0.2, 0.9, 0.0]).log()
    assert change_probability(p, q).tolist() == pytest.approx([0.6, 0.0, 1.0])
