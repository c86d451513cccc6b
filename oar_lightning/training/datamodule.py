"""The LightningDataModule: problems in a seeded order, divided among ranks, as loader items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import lightning as L
import torch

from oar_lightning.data.curriculum import Curriculum, EveryProblem
from oar_lightning.data.stream import Keep, ProblemSource, ProblemStream, keep_all
from oar_lightning.distributed.ranks import all_gather, interleaved
from oar_lightning.types import MathProblem


class LoaderPlan(Protocol):
    """How the optimizer steps of a module take problems from the stream: `UpdatePlan` (slots) or `SupervisedConfig`."""

    @property
    def microbatches(self) -> int:
        """Loader items per optimizer step."""
        ...

    def check(self, world_size: int) -> None:
        """Raises: ValueError: where a step's problems cannot be divided evenly among so many ranks."""
        ...

    def loader(self, stream: ProblemStream, steps: int) -> Any:
        """The loader of so many optimizer steps: sized, endless, with a state of plain types."""
        ...


class MathDataModule(L.LightningDataModule):
    """The training problems of `steps` optimizer steps, chosen by `keep` and `curriculum` and divided as `plan` says."""

    def __init__(
        self,
        train: ProblemSource,
        seed: int,
        steps: int,
        plan: LoaderPlan,
        keep: Keep = keep_all,
        curriculum: Curriculum = EveryProblem(),
    ) -> None:
        super().__init__()
        self.train = train
        self.seed = seed
        self.steps = steps
        self.plan = plan
        self.keep = keep
        self.curriculum = curriculum
        self.stream: ProblemStream | None = None

    def setup(self, stage: str) -> None:
        # with half precision Lightning would walk through a batch to convert its tensors; slots have none and cannot be changed
        self.trainer.precision_plugin.convert_input = lambda batch: batch

    def train_dataloader(self) -> Any:
        trainer = self.trainer
        rank, world = (trainer.global_rank, trainer.world_size) if trainer is not None else (0, 1)
        self.stream = ProblemStream(self.train, self.seed, rank, world, self.keep, self.curriculum)
        return self.plan.loader(self.stream, self.steps)

    @property
    def dropped(self) -> dict[str, int]:
        """How many training problems were dropped so far, by reason."""
        return {} if self.stream is None else dict(self.stream.dropped)

    def metrics(self) -> dict[str, float]:
        """`dropped` under ``data/dropped/``, in names that a logger accepts, and the curriculum's. Equal on all ranks."""
        dropped = {f"data/dropped/{reason.replace(' ', '_')}": float(count) for reason, count in self.dropped.items()}
        return dropped | ({} if self.stream is None else self.stream.draws.metrics())

    def observe(self, problems: Sequence[MathProblem], pass_rates: Sequence[float]) -> None:
        """Tell the curriculum the share of right completions of each of this rank's problems. All ranks have to call it."""
        if self.stream is None or not self.curriculum.active:
            return
        groups = [(self.stream.draws.kind(problem), rate) for problem, rate in zip(problems, pass_rates, strict=True)]
        self.stream.draws.observe(interleaved(all_gather(groups)))  # in the order of one rank, on any number of them

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # no tensors


def data_metrics(trainer: L.Trainer) -> dict[str, float]:
    """The metrics of the trainer's data module; empty where it has another one than `MathDataModule`."""
    return trainer.datamodule.metrics() if isinstance(trainer.datamodule, MathDataModule) else {}


def observe_pass_rates(trainer: L.Trainer, problems: Sequence[MathProblem], pass_rates: Sequence[float]) -> None:
    """Tell the trainer's data module how often each of this rank's problems was solved. All ranks have to call it."""
    if isinstance(trainer.datamodule, MathDataModule):
        trainer.datamodule.observe(problems, pass_rates)
