"""What a scorer has to be, and where scores of rows are put."""

from __future__ import annotations

import pytest
import torch

from oar_lightning.credit.scorers.base import Scorer, place_rows


def test_a_scorer_needs_a_rule() -> None:
    class NoRule(Scorer):
        pass

    with pytest.raises(TypeError, match="abstract"):
        NoRule()  # type: ignore[abstract]


def test_values_are_placed_on_the_masked_tokens_of_their_rows() -> None:
    mask = torch.tensor([[0, 1, 1], [1, 1, 1], [1, 0, 1]]).bool()
    found = place_rows([torch.tensor([5.0, 6.0]), torch.tensor([7.0, 8.0])], mask, torch.tensor([2, 0]))
    assert found.tolist() == [[0, 7, 8], [0, 0, 0], [5, 0, 6]]
    assert torch.equal(place_rows([], mask, torch.tensor([], dtype=torch.long)), torch.zeros(3, 3))
