"""Problems as endless, seeded, resumable streams; one loader item per mini-batch of an optimizer phase ("slot")."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from oar_lightning.types import MathProblem


@runtime_checkable
class ProblemSource(Protocol):
    """Problems by index. ``size`` is None for an endless generator; else indices run over ``range(size)``."""

    @property
    def size(self) -> int | None: ...

    def __getitem__(self, index: int) -> MathProblem: ...


class ProblemStream:
    """A source in a seeded order without end: a finite source is shuffled anew each epoch.

    The position is one integer, the same on all ranks, so a stream resumes anywhere. Of what all ranks take together,
    each gets every `world_size`-th problem.
    """

    def __init__(self, source: ProblemSource, seed: int, rank: int = 0, world_size: int = 1) -> None:
        self.source = source
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.position = 0
        self._order: tuple[int, list[int]] | None = None

    def take(self, count: int) -> list[MathProblem]:
        """This rank's next `count` problems."""
        mine = range(self.position + self.rank, self.position + count * self.world_size, self.world_size)
        self.position += count * self.world_size
        return [self.source[self._index(i)] for i in mine]

    def _index(self, position: int) -> int:
        size = self.source.size
        if size is None:
            return position
        epoch, offset = divmod(position, size)
        if self._order is None or self._order[0] != epoch:
            order = list(range(size))
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
            self._order = (epoch, order)
        return self._order[1][offset]


@dataclass(frozen=True)
class UpdatePlan:
    """How many optimizer steps and micro-batches one batch of rollouts is used for.

    Args:
        problems: problems per batch of rollouts (per rank).
        group_size: completions per problem.
        inner_epochs: passes over a batch of rollouts (mu).
        minibatches: optimizer steps per pass.
        microbatches: forward-backward passes per optimizer step; does not change its gradient, bounds its memory.
    """

    problems: int = 32
    group_size: int = 8
    inner_epochs: int = 1
    minibatches: int = 1
    microbatches: int = 1

    def __post_init__(self) -> None:
        for key in ("problems", "inner_epochs", "minibatches", "microbatches"):
            if getattr(self, key) < 1:
                raise ValueError(f"update.{key} must be >= 1, got {getattr(self, key)}")
        if self.group_size < 2:
            raise ValueError(f"update.group_size must be >= 2 (advantages are relative to the group), got {self.group_size}")
        if self.minibatches > self.problems * self.group_size:
            raise ValueError(
                f"update.minibatches={self.minibatches} is more than the {self.problems * self.group_size} completions "
                "of a batch of rollouts (update.problems * update.group_size); lower it"
            )

    @property
    def steps_per_rollout(self) -> int:
        return self.inner_epochs * self.minibatches

    @property
    def slots_per_rollout(self) -> int:
        return self.steps_per_rollout * self.microbatches


@dataclass(frozen=True)
class Slot:
    """One micro-batch's turn. ``problems`` is filled in the first slot of a batch of rollouts, empty in the others."""

    problems: tuple[MathProblem, ...]
    rollout: int
    inner_epoch: int
    minibatch: int
    microbatch: int

    @property
    def first(self) -> bool:
        return self.inner_epoch == self.minibatch == self.microbatch == 0


class SlotLoader:
    """Yields the slots of `steps` optimizer steps. Has a length (else Lightning prefetches one item and the saved
    position is one too far) and a state of two integers."""

    def __init__(self, stream: ProblemStream, plan: UpdatePlan, steps: int) -> None:
        self.stream = stream
        self.plan = plan
        self.steps = steps
        self.position = 0

    def __len__(self) -> int:
        return self.steps * self.plan.microbatches

    def __iter__(self) -> Iterator[Slot]:
        while True:
            rollout, within = divmod(self.position, self.plan.slots_per_rollout)
            step, microbatch = divmod(within, self.plan.microbatches)
            inner_epoch, minibatch = divmod(step, self.plan.minibatches)
            problems = tuple(self.stream.take(self.plan.problems)) if within == 0 else ()
            self.position += 1
            yield Slot(problems, rollout, inner_epoch, minibatch, microbatch)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position, "stream": self.stream.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]
        self.stream.position = state["stream"]
