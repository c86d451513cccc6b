"""The LightningDataModule: slots for RL, batches of demonstrations for warm starts, sharded by rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import torch

from oar_lightning.data.stream import ProblemSource, ProblemStream, SlotLoader, UpdatePlan
from oar_lightning.types import MathProblem


class BatchLoader:
    """Batches of problems from a stream; sized and stateful like `SlotLoader`."""

    def __init__(self, stream: ProblemStream, batch_size: int, steps: int) -> None:
        self.stream = stream
        self.batch_size = batch_size
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[MathProblem]]:
        while True:
            yield self.stream.take(self.batch_size)

    def state_dict(self) -> dict[str, int]:
        return {"stream": self.stream.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.stream.position = state["stream"]


class MathDataModule(L.LightningDataModule):
    """Training problems as a loader of `steps` optimizer steps: slots where there is an `UpdatePlan`, else batches."""

    def __init__(self, train: ProblemSource, seed: int, steps: int, plan: UpdatePlan | int) -> None:
        super().__init__()
        self.train = train
        self.seed = seed
        self.steps = steps
        self.plan = plan

    def train_dataloader(self) -> SlotLoader | BatchLoader:
        trainer = self.trainer
        rank, world = (trainer.global_rank, trainer.world_size) if trainer is not None else (0, 1)
        stream = ProblemStream(self.train, self.seed, rank=rank, world_size=world)
        if isinstance(self.plan, UpdatePlan):
            return SlotLoader(stream, self.plan, self.steps)
        return BatchLoader(stream, self.plan, self.steps)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # slots and problems hold no tensors, and Lightning refuses frozen dataclasses


def benchmark_problems(source: ProblemSource, count: int | None, name: str) -> list[MathProblem]:
    """The first `count` problems of a benchmark, or all of a finite one.

    Raises:
        ValueError: where all of an endless one are asked for.
    """
    size = source.size
    if count is None and size is None:
        raise ValueError(f"evaluation.problems=null asks for all problems of {name}, which is endless; set a number")
    total = size if count is None else count if size is None else min(count, size)
    assert total is not None
    return [source[i] for i in range(total)]


def sample_texts(source: ProblemSource, render: Callable[[MathProblem], str], count: int) -> list[str]:
    """Prompts and solutions of up to `count` problems, to train a tokenizer on."""
    total = count if source.size is None else min(count, source.size)
    problems: list[MathProblem] = [source[i] for i in range(total)]
    return [text for p in problems for text in (render(p), p.solution)]
