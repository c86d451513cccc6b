"""A batch of rollouts with its credit, in a checkpoint."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from support.fixtures import make_module, tiny_policy

from oar_lightning.credit.scorers import Entropy
from oar_lightning.training.experience import Experience
from oar_lightning.types import MathProblem


def test_columns_of_any_kind_leave_a_readable_checkpoint(tmp_path: Path) -> None:
    """Plain ones are in it; those that `weights_only` would refuse are not, as no later step reads any."""
    extra = {"level": 3, "names": ("a", "b"), "price": Decimal("0.1"), "tolerance": Fraction(1, 10), "rate": np.float64(0.5)}
    module = make_module(tiny_policy(), Entropy())
    experience = module.collector.collect((MathProblem(np.str_("1 + 1 ="), np.str_("2"), extra=extra),), 0).experience
    torch.save(experience.state_dict(), tmp_path / "experience.pt")
    state = torch.load(tmp_path / "experience.pt", weights_only=True)
    again = Experience.from_state_dict(state, torch.device("cpu"))
    assert dict(again.rollouts.problems[0].extra) == {"level": 3, "names": ("a", "b"), "price": "0.1", "rate": 0.5}
    assert torch.equal(again.rollouts.token_ids, experience.rollouts.token_ids)
    assert torch.equal(again.credit.advantages, experience.credit.advantages)
