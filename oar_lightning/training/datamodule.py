"""The LightningDataModule: slots for RL, batches of demonstrations for warm starts, sharded by rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning as L
import torch

from oar_lightning.data.stream import Keep, ProblemSource, ProblemStream, keep_all
from oar_lightning.distributed.ranks import share
from oar_lightning.training.slots import SlotLoader, UpdatePlan
from oar_lightning.types import MathProblem


class BatchLoader:
    """Batches of problems from a stream; sized and stateful like `SlotLoader`."""

    def __init__(self, stream: ProblemStream, batch_size: int, steps: int) -> None:
        self.stream = stream
        self.batch_size = share("supervised.batch_size", batch_size, stream.world_size)
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[MathProblem]]:
        while True:
            yield self.stream.take(self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        return {"stream": self.stream.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state["stream"])


class MathDataModule(L.LightningDataModule):
    """Training problems as a loader of `steps` optimizer steps: slots where there is an `UpdatePlan`, else batches."""

    def __init__(self, train: ProblemSource, seed: int, steps: int, plan: UpdatePlan | int, keep: Keep = keep_all) -> None:
        super().__init__()
        self.train = train
        self.seed = seed
        self.steps = steps
        self.plan = plan
        self.keep = keep
        self.stream: ProblemStream | None = None

    def check(self, ranks: int) -> None:
        """Whether a batch can be dealt out to so many ranks.

        Raises:
            ValueError: names key, value and remedy.
        """
        if isinstance(self.plan, UpdatePlan):
            share("update.problems", self.plan.problems, ranks)
        else:
            share("supervised.batch_size", self.plan, ranks)

    def setup(self, stage: str) -> None:
        # half precisions convert the tensors of a batch; slots and problems hold none, and Lightning refuses frozen dataclasses
        self.trainer.precision_plugin.convert_input = lambda batch: batch

    def train_dataloader(self) -> SlotLoader | BatchLoader:
        trainer = self.trainer
        rank, world = (trainer.global_rank, trainer.world_size) if trainer is not None else (0, 1)
        self.stream = ProblemStream(self.train, self.seed, rank=rank, world_size=world, keep=self.keep)
        if isinstance(self.plan, UpdatePlan):
            return SlotLoader(self.stream, self.plan, self.steps)
        return BatchLoader(self.stream, self.plan, self.steps)

    @property
    def dropped(self) -> dict[str, int]:
        """How many training problems were passed over so far, by reason."""
        return {} if self.stream is None else dict(self.stream.dropped)

    def metrics(self) -> dict[str, float]:
        """`dropped` under ``data/dropped/``, in names that a logger accepts."""
        return {f"data/dropped/{reason.replace(' ', '_')}": float(count) for reason, count in self.dropped.items()}

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # the same


def dropped_metrics(trainer: L.Trainer) -> dict[str, float]:
    """What the trainer's data module passed over so far; nothing where its problems come from elsewhere."""
    return trainer.datamodule.metrics() if isinstance(trainer.datamodule, MathDataModule) else {}
