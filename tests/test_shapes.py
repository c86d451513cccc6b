"""While tests run, the shapes in the package's signatures are checked: tests/support/checked_shapes.py."""

from __future__ import annotations

import jaxtyping
import pytest
import torch

from oar_lightning.objective.advantage import combine_rewards


def test_a_wrong_shape_is_an_error() -> None:
    terms = torch.ones(4, 2)
    assert combine_rewards(terms, torch.ones(2)).tolist() == [2.0] * 4
    for weights in (torch.ones(3), torch.ones(1, 2), torch.ones(2, dtype=torch.int64)):
        with pytest.raises(jaxtyping.TypeCheckError):
            combine_rewards(terms, weights)
