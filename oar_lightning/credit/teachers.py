"""A policy as it was some steps ago."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from oar_lightning.policy.language_model import in_shards


class LaggedWeights:
    """A copy of a policy's trained weights, renewed every so many rollout steps.

    Args:
        every: rollout steps for which a copy is used; None for ever.
        key: the setting that asks for copies.
    """

    def __init__(self, every: int | None, key: str = "scorer.teacher_every") -> None:
        self.every = every
        self.key = key
        self.step = 0
        self.weights: dict[str, Tensor] = {}
        """Empty until the first copy; equal on all ranks."""

    def renew(self, model: Any, step: int) -> None:
        """Copy the weights where there is no copy yet, or one of `every` steps ago.

        Raises:
            ValueError: for weights that are sharded over ranks.
        """
        if self.weights and (self.every is None or 0 <= step - self.step < self.every):
            return
        self.check(model)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.weights, self.step = {name: p.detach().clone() for name, p in trained.items()}, step

    def check(self, model: Any) -> None:
        """Raises: ValueError: for weights that are sharded over ranks."""
        if in_shards(p for p in model.parameters() if p.requires_grad):
            raise ValueError(
                f"{self.key} copies the policy's weights, which ZeRO-3 has sharded over the ranks; unset {self.key}, or use "
                "another strategy"
            )

    def forget(self) -> None:
        """Have no copy."""
        self.step, self.weights = 0, {}

    @contextlib.contextmanager
    def inside(self, model: Any) -> Iterator[None]:
        """Inside the block the model has the copied weights. Its parameters stay the same objects."""
        parameters = dict(model.named_parameters())
        own = {name: parameters[name].data for name in self.weights}
        try:
            for name, weight in self.weights.items():
                parameters[name].data = weight.to(own[name])
            yield
        finally:
            for name, weight in own.items():
                parameters[name].data = weight

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "weights": dict(self.weights)} if self.weights else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.weights = int(state.get("step", 0)), dict(state.get("weights", {}))
