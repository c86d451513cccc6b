"""Problems as endless, seeded, resumable streams; one loader item per mini-batch of an optimizer phase ("slot")."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import get_worker_info

from oar_lightning.ranks import share
from oar_lightning.token_budget import TokenBudget, Tokens, as_budget
from oar_lightning.types import MathProblem

Keep = Callable[[MathProblem], str | None]
"""Why a problem is to be dropped, or None to keep it."""


PATIENCE = 10_000
"""So many problems dropped in a row end a stream from an endless source, which has no epoch to end."""


@runtime_checkable
class ProblemSource(Protocol):
    """Problems one after the other. Each call starts anew and gives the same problems for the same arguments."""

    def __iter__(self) -> Iterator[MathProblem]:
        """All problems in their stored order; without end for a generator."""
        ...

    def shuffled(self, seed: int, epoch: int, start: int = 0) -> Iterator[MathProblem]:
        """One epoch in an order determined by (seed, epoch), from its `start`-th problem on; without end for a generator."""
        ...


@runtime_checkable
class EndlessSource(ProblemSource, Protocol):
    """A source that says whether its iterators end; one that does not say so is taken to be finite."""

    @property
    def endless(self) -> bool: ...


def is_endless(source: ProblemSource) -> bool:
    return isinstance(source, EndlessSource) and source.endless


def keep_all(problem: MathProblem) -> None:
    """Drops nothing."""


class ProblemStream:
    """A source in a seeded order without end: a finite source is shuffled anew each epoch.

    All shards (ranks, times the workers of a torch DataLoader where the stream is read inside of one) walk the same order
    and each takes every n-th problem that `keep` accepts, so what all take together does not depend on their number.
    ``dropped`` counts the walked problems that were not accepted, by reason: over all ranks, each time anew in each epoch.
    """

    def __init__(self, source: ProblemSource, seed: int, rank: int = 0, world_size: int = 1, keep: Keep = keep_all) -> None:
        self.source = source
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.keep = keep
        self.load_state_dict({"epoch": 0, "offset": 0, "kept": 0, "dropped": {}})

    def take(self, count: int) -> list[MathProblem]:
        """This shard's next `count` problems.

        Raises:
            ValueError: where a whole epoch has none that is accepted.
        """
        worker = get_worker_info()
        workers, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        shards = self.world_size * workers
        return [self._next() for _ in range(count * shards)][self.rank * workers + number :: shards]

    def state_dict(self) -> dict[str, Any]:
        """The position: the epoch, how many of its problems were walked and how many of those kept, and the drops."""
        return {"epoch": self.epoch, "offset": self.offset, "kept": self.kept, "dropped": dict(self.dropped)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.offset, self.kept = int(state["epoch"]), int(state["offset"]), int(state["kept"])
        self.dropped = Counter[str](state["dropped"])
        self._walk: Iterator[MathProblem] | None = None
        self._opened_in = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_walk": None}  # an open iterator does not travel to a worker; it is reopened there

    def _next(self) -> MathProblem:
        in_a_row = 0
        while True:
            for problem in self._opened():
                self.offset += 1
                reason = self.keep(problem)
                if reason is None:
                    self.kept += 1
                    return problem
                self.dropped[reason] += 1
                in_a_row += 1
                if in_a_row >= PATIENCE and is_endless(self.source):
                    raise self._nothing_left(f"{PATIENCE} problems in a row")
            if not self.kept:
                raise self._nothing_left("a whole epoch")
            self.epoch, self.offset, self.kept, self._walk = self.epoch + 1, 0, 0, None

    def _nothing_left(self, where: str) -> ValueError:
        counts = ", ".join(f"{reason}: {count}" for reason, count in self.dropped.items()) or "the source is empty"
        return ValueError(
            f"data.train: {where} with none to train on ({counts}); relax what drops them "
            "(data.max_prompt_tokens, data.decontaminate) or choose other data"
        )

    def _opened(self) -> Iterator[MathProblem]:
        if self._walk is None or self._opened_in != os.getpid():  # a forked worker must not share its parent's open files
            self._walk = self.source.shuffled(self.seed, self.epoch, self.offset)
            self._opened_in = os.getpid()
        return self._walk


@dataclass(frozen=True)
class UpdatePlan:
    """How many optimizer steps and micro-batches one batch of rollouts is used for.

    Args:
        problems: problems per batch of rollouts, those of all ranks together.
        group_size: completions per problem.
        inner_epochs: passes over a batch of rollouts (mu).
        minibatches: optimizer steps per pass.
        microbatches: forward-backward passes per optimizer step at most; does not change its gradient, bounds its memory.
        token_budget: padded tokens of one pass; as few passes are made as keep within it. Where `microbatches` are too few
            for that, their sizes are even (and `update/microbatch_tokens` exceeds it). None: always so many passes. `auto`:
            halved where memory runs out; what then exceeds it is divided further (see `TokenBudget`).
        compile: `torch.compile` the decoder of these passes; the first steps then take minutes.
    """

    problems: int = 32
    group_size: int = 8
    inner_epochs: int = 1
    minibatches: int = 1
    microbatches: int = 1
    token_budget: TokenBudget | Tokens = None
    compile: bool = False

    def __post_init__(self) -> None:
        for key in ("problems", "inner_epochs", "minibatches", "microbatches"):
            if getattr(self, key) < 1:
                raise ValueError(f"update.{key} must be >= 1, got {getattr(self, key)}")
        object.__setattr__(self, "token_budget", as_budget("update.token_budget", self.token_budget))
        if self.group_size < 2:
            raise ValueError(f"update.group_size must be >= 2 (advantages are relative to the group), got {self.group_size}")
        if self.minibatches > self.problems * self.group_size:
            raise ValueError(
                f"update.minibatches={self.minibatches} is more than the {self.problems * self.group_size} completions "
                "of a batch of rollouts (update.problems * update.group_size); lower it"
            )

    @property
    def budget(self) -> TokenBudget:
        assert isinstance(self.token_budget, TokenBudget)
        return self.token_budget

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
    position is one too far) and a state of plain types."""

    def __init__(self, stream: ProblemStream, plan: UpdatePlan, steps: int) -> None:
        self.stream = stream
        self.plan = plan
        self.steps = steps
        self.problems = share("update.problems", plan.problems, stream.world_size)
        self.position = 0

    def __len__(self) -> int:
        return self.steps * self.plan.microbatches

    def __iter__(self) -> Iterator[Slot]:
        while True:
            rollout, within = divmod(self.position, self.plan.slots_per_rollout)
            step, microbatch = divmod(within, self.plan.microbatches)
            inner_epoch, minibatch = divmod(step, self.plan.minibatches)
            problems = tuple(self.stream.take(self.problems)) if within == 0 else ()
            self.position += 1
            yield Slot(problems, rollout, inner_epoch, minibatch, microbatch)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "stream": self.stream.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
        self.stream.load_state_dict(state["stream"])
