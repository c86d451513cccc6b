"""What gates say of themselves, and the two helpers that make credit of weights and of token advantages, by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.toy import rollouts_of

from oar_lightning.credit.gates import BilevelGate, ClipGate, ContrastGate, DirectGate, SelectGate, SignedGate
from oar_lightning.credit.gates.base import Gate, shaped, weighted
from oar_lightning.types import Credit, Rollouts

SEQUENCES = [
    {"before": [1, 2], "reasoning": [3, 4, 5], "answer": [7]},
    {"before": [1], "reasoning": [3], "answer": [7]},
]


class Plain(Gate):
    """A plug-in that says nothing of itself."""

    def __call__(self, scores: torch.Tensor, rollouts: Rollouts) -> Credit:
        return weighted(scores, torch.ones_like(scores), rollouts)


FACTS = ("signed", "reads_all_rows", "reads_groups", "reads_step", "uniform", "masks_loss", "clips", "averages_tokens")


@pytest.mark.parametrize(
    ("gate", "facts"),
    [
        (Plain(), set()),
        (BilevelGate(), set()),
        (DirectGate(), set()),
        (SelectGate(), {"reads_all_rows", "reads_step", "masks_loss"}),
        (SelectGate(over="row"), {"reads_all_rows", "masks_loss"}),
        (SelectGate(1.0, denominator="all"), {"reads_all_rows", "reads_step", "uniform"}),
        (ClipGate(), {"reads_all_rows", "uniform", "clips"}),
        (SignedGate(), {"signed"}),
        (SignedGate(normalize="group"), {"signed", "reads_groups"}),
        (ContrastGate(), {"signed", "reads_groups", "reads_step", "averages_tokens"}),
    ],
)
def test_what_a_gate_does_is_a_fact_that_is_true_or_false(gate: Gate, facts: set[str]) -> None:
    values = {name: getattr(gate, name) for name in FACTS}
    assert values == {name: name in facts for name in FACTS}


@pytest.mark.parametrize(
    ("gate", "mass"),
    [
        (Plain(), "any"),
        (BilevelGate(), "kept"),
        (BilevelGate(renormalize=False), "free"),
        (SignedGate(), "any"),
    ],
)
def test_what_becomes_of_the_mass(gate: Gate, mass: str) -> None:
    assert gate.mass == mass


def test_a_gate_needs_a_rule() -> None:
    class NoRule(Gate):
        pass

    with pytest.raises(TypeError, match="abstract"):
        NoRule()  # type: ignore[abstract]


@pytest.fixture
def rollouts() -> Rollouts:
    return dataclasses.replace(rollouts_of(SEQUENCES), advantages=torch.tensor([-0.5, 0.0], dtype=torch.float64))


def test_weights_multiply_the_group_advantage_on_the_response(rollouts: Rollouts) -> None:
    weights = torch.arange(12.0).view(2, 6)
    credit = weighted(torch.zeros(2, 6), weights, rollouts)
    assert credit.advantages.tolist() == [[0, 0, -1, -1.5, -2, -2.5], [0] * 6]
    assert torch.equal(credit.weights, weights.double())


def test_token_advantages_are_weights_where_there_is_a_group_advantage(rollouts: Rollouts) -> None:
    given = torch.tensor([[9.0, 9, 1, -1, 0.25, 0], [9.0, 9, 3, -3, 9, 9]])
    credit = shaped(torch.zeros(2, 6), given, rollouts)
    assert credit.advantages.tolist() == [[0, 0, 1, -1, 0.25, 0], [0, 0, 3, -3, 0, 0]]
    assert credit.weights.tolist() == [[0, 0, -2, 2, -0.5, 0], [0] * 6]
