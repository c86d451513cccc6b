"""The update's part of a checkpoint: the experience that later steps still learn from, token budgets, states of the method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import lightning as L

from oar_lightning.distributed.ranks import all_gather, rank, world_size
from oar_lightning.policy.token_budget import TokenBudget, budgets_state, load_budgets
from oar_lightning.training.experience import Experience
from oar_lightning.training.method import Method


class Stateful(Protocol):
    """What a resumed run has to know something of."""

    def state_dict(self) -> dict[str, Any]:
        """Plain containers and tensors, equal on all ranks; empty for nothing."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; an empty one is the beginning."""
        ...


class Learner(Protocol):
    """A module that learns from experience, as far as its state goes."""

    experience: Experience | None

    @property
    def method(self) -> Method: ...

    @property
    def stateful(self) -> Mapping[str, Stateful]: ...

    @property
    def budgets(self) -> tuple[TokenBudget, ...]: ...


class UpdateState(L.Callback):
    """Saves and loads the experience of each rank, the token budgets, and what the stateful parts remember."""

    def __init__(self, module: Learner) -> None:
        self.module = module

    def on_save_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if budgets := budgets_state(self.module.budgets):
            checkpoint["token_budgets"] = budgets
        states = {name: part.state_dict() for name, part in self.module.stateful.items()}
        if states := {name: state for name, state in states.items() if state}:
            checkpoint["credit"] = states
        if self.module.experience is not None and self.module.method.update.steps_per_rollout > 1:
            checkpoint["experience"] = all_gather(self.module.experience.state_dict())

    def on_load_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        load_budgets(self.module.budgets, checkpoint.get("token_budgets", {}))
        for name, part in self.module.stateful.items():
            part.load_state_dict(checkpoint.get("credit", {}).get(name, {}))
        states = checkpoint.get("experience")
        if states is None:
            return
        step, steps_per_rollout = int(checkpoint["global_step"]), self.module.method.update.steps_per_rollout
        if len(states) == world_size():
            self.module.experience = Experience.from_state_dict(states[rank()], trainer.strategy.root_device)
        elif step % steps_per_rollout:
            raise ValueError(
                f"the checkpoint at step {step} is in the middle of a batch of rollouts of {len(states)} "
                f"ranks and cannot go on with {world_size()}; set trainer.devices to {len(states)} until a checkpoint whose "
                f"step is a multiple of {steps_per_rollout} (update.inner_epochs * update.minibatches)"
            )
