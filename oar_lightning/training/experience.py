"""One batch of rollouts with its credit, how optimizer steps divide it, and its form in a checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from oar_lightning.common.randomness import generator
from oar_lightning.data.rows import plain_value
from oar_lightning.training.slots import Slot, UpdatePlan
from oar_lightning.types import Credit, MathProblem, Rollouts, thawed


@dataclass(frozen=True)
class Experience:
    """Rollouts and the credit assigned to them."""

    rollouts: Rollouts
    credit: Credit

    def minibatch(self, slot: Slot, update: UpdatePlan, seed: int, rank: int = 0, ranks: int = 1) -> Int[Tensor, " n"]:
        """This rank's rows of the slot's optimizer step.

        The rows of all ranks are put into one random order per inner epoch and divided into mini-batches; each rank then
        takes its own rows of the mini-batch, perhaps none. So a step's rows do not depend on the number of ranks.
        """
        size = self.rollouts.group_size
        rows = torch.arange(len(self.rollouts) * ranks)
        if update.minibatches > 1:
            rows = torch.randperm(len(rows), generator=generator(seed, "minibatch", slot.rollout, slot.inner_epoch))
        rows = split_rows(rows, update.minibatches)[slot.minibatch]
        group = rows // size  # groups are dealt to ranks in turn: group g is on rank g % ranks
        own = group % ranks == rank
        return (group[own] // ranks * size + rows[own] % size).to(self.rollouts.token_ids.device)

    def select(self, rows: Int[Tensor, " n"]) -> Experience:
        """The given rows, cut to the columns they use."""
        columns = self.rollouts.columns(rows)
        return Experience(self.rollouts.select(rows), self.credit.select(rows, columns))

    @property
    def loss_mask(self) -> Bool[Tensor, "B S"]:
        """The tokens that count in the loss: all of the responses, unless the gate chose."""
        return self.rollouts.response_mask if self.credit.loss_mask is None else self.credit.loss_mask

    def state_dict(self) -> dict[str, Any]:
        """Plain containers and tensors on the CPU only: checkpoints load with `weights_only`, and ranks exchange them."""

        def on_cpu(value: Any) -> Any:
            return value.cpu() if isinstance(value, Tensor) else value

        rollouts = {f.name: on_cpu(getattr(self.rollouts, f.name)) for f in dataclasses.fields(Rollouts)}
        plain = {id(p): _plain_problem(p) for p in self.rollouts.problems}  # once a problem, not a row
        rollouts["problems"] = [plain[id(p)] for p in self.rollouts.problems]
        credit = {f.name: on_cpu(getattr(self.credit, f.name)) for f in dataclasses.fields(Credit)}
        return {"rollouts": rollouts, "credit": credit}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any], device: torch.device) -> Experience:
        def moved(values: dict[str, Any]) -> dict[str, Any]:
            return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in values.items()}

        rollouts = moved(state["rollouts"])
        rollouts["problems"] = tuple(MathProblem(**p) for p in rollouts["problems"])
        return cls(Rollouts(**rollouts), Credit(**moved(state["credit"])))


def _plain_problem(problem: MathProblem) -> dict[str, Any]:
    """Its fields in a form that a checkpoint may hold: those of an own source may be of numpy."""
    return {name: _plain(value) if name == "extra" else plain_value(value) for name, value in vars(problem).items()}


def _plain(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The columns in a form that a checkpoint may hold, without those that have none: no later step reads any."""
    found = {}
    for name, value in thawed(extra).items():
        with contextlib.suppress(TypeError):
            found[name] = plain_value(value)
    return found


def split_rows(rows: Int[Tensor, " n"], parts: int) -> list[Int[Tensor, " m"]]:
    """Divide `rows` in order into `parts` pieces of nearly equal size; some are empty where rows are fewer."""
    return list(rows.tensor_split(parts))
