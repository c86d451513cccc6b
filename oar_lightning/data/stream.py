"""Problems as endless, seeded, resumable streams."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import get_worker_info

from oar_lightning.common.config_check import ConfigError
from oar_lightning.data.curriculum import Curriculum, Draws, EveryProblem
from oar_lightning.types import MathProblem

Keep = Callable[[MathProblem], str | None]
"""Gives the reason to drop a problem, or None to keep it."""


BEGINNING = MappingProxyType({"epoch": 0, "offset": 0, "kept": 0, "dropped": {}})
"""The state of a stream that nothing was taken of."""

PATIENCE = 10_000
"""An endless source has no end of an epoch to stop at: its stream stops after so many dropped problems in a row."""


@runtime_checkable
class ProblemSource(Protocol):
    """An ordered collection of problems. Each call starts anew and gives the same problems for the same arguments."""

    def __iter__(self) -> Iterator[MathProblem]:
        """All problems in their stored order; a generator of problems never ends."""
        ...

    def shuffled(self, seed: int, epoch: int, start: int = 0) -> Iterator[MathProblem]:
        """One epoch in an order determined by (seed, epoch), from its `start`-th problem on; a generator's never ends."""
        ...


@runtime_checkable
class EndlessSource(ProblemSource, Protocol):
    """A source that says whether its iterators end. A source without `endless` is taken to be finite."""

    @property
    def endless(self) -> bool: ...


def is_endless(source: ProblemSource) -> bool:
    return isinstance(source, EndlessSource) and source.endless


def keep_all(problem: MathProblem) -> None:
    """Drops nothing."""


class ProblemStream:
    """An endless sequence of a source's problems in a seeded order: a finite source is shuffled anew each epoch.

    A shard is one rank, or one DataLoader worker of one rank where the stream is read inside a DataLoader. All shards walk
    the same order, and each takes every n-th problem that `keep` accepts: what they take together does not depend on n.
    ``dropped`` counts by reason the problems that were walked and not accepted, over all ranks. A problem that is dropped in
    each epoch counts once an epoch. Of those that are accepted the curriculum passes over some; ``draws`` is what it knows.
    """

    def __init__(
        self,
        source: ProblemSource,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        keep: Keep = keep_all,
        curriculum: Curriculum = EveryProblem(),
    ) -> None:
        self.source = source
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.keep = keep
        self.draws = Draws(curriculum, seed, is_endless(source))
        self.load_state_dict(BEGINNING)

    def take(self, count: int, progress: float = 0.0) -> list[MathProblem]:
        """This shard's next `count` problems. `progress`: the fraction of the run's steps that are done.

        Raises:
            ValueError: where no problem of a whole epoch is accepted.
        """
        worker = get_worker_info()
        assert worker is None or not self.draws.curriculum.active, "pass rates do not reach a DataLoader's workers"
        workers, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        shards = self.world_size * workers
        return [self._next(progress) for _ in range(count * shards)][self.rank * workers + number :: shards]

    def of_first_epoch(self, count: int) -> list[MathProblem]:
        """Up to `count` problems of a new stream, none of which is another one's repetition in a later epoch."""
        found: list[MathProblem] = []
        while len(found) < count:
            (problem,) = self.take(1)
            if self.epoch:
                break
            found.append(problem)
        return found

    def state_dict(self) -> dict[str, Any]:
        """The position: the epoch, how many of its problems were walked, how many of those were kept, and the drops; what the
        curriculum knows."""
        drawn = {"curriculum": state} if (state := self.draws.state_dict()) else {}
        return {"epoch": self.epoch, "offset": self.offset, "kept": self.kept, "dropped": dict(self.dropped), **drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.offset, self.kept = int(state["epoch"]), int(state["offset"]), int(state["kept"])
        self.dropped = Counter[str](state["dropped"])
        self.draws.load_state_dict(state.get("curriculum", {}))
        self._walk: Iterator[MathProblem] | None = None
        self._opened_in = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_walk": None}  # an open iterator cannot be pickled for a worker, which reopens it

    def _next(self, progress: float) -> MathProblem:
        in_a_row, passed_over = 0, 0
        while True:
            for problem in self._opened():
                self.offset += 1
                reason = self.keep(problem)
                if reason is None:
                    self.kept += 1
                    if self.draws.takes(problem, self.epoch, self.offset, progress):
                        return problem
                    passed_over += 1
                    if passed_over >= PATIENCE:
                        raise ValueError(
                            f"curriculum: passed over {PATIENCE} problems in a row; raise its weights (curriculum.floor)"
                        )
                    continue
                self.dropped[reason] += 1
                in_a_row += 1
                if in_a_row >= PATIENCE and is_endless(self.source):
                    raise nothing_left(f"{PATIENCE} problems in a row", self.dropped)
            if not self.kept:
                raise nothing_left("a whole epoch", self.dropped)
            self.epoch, self.offset, self.kept, self._walk = self.epoch + 1, 0, 0, None

    def _opened(self) -> Iterator[MathProblem]:
        if self._walk is None or self._opened_in != os.getpid():  # a forked worker must not share its parent's open files
            self._walk = self.source.shuffled(self.seed, self.epoch, self.offset)
            self._opened_in = os.getpid()
        return self._walk


def check_kept(source: ProblemSource, keep: Keep) -> None:
    """Before long work, look for a problem to train on.

    Raises:
        ConfigError: where a finite source has none, or the beginning of an endless one.
    """
    dropped = Counter[str]()
    for problem in islice(source, PATIENCE if is_endless(source) else None):
        if (reason := keep(problem)) is None:
            return
        dropped[reason] += 1
    raise nothing_left(f"{PATIENCE} problems" if is_endless(source) else "a whole epoch", dropped)


def nothing_left(where: str, dropped: Mapping[str, int]) -> ConfigError:
    counts = ", ".join(f"{reason}: {count}" for reason, count in dropped.items()) or "the source is empty"
    return ConfigError(
        f"data.train: {where} with none to train on ({counts}); relax what drops them "
        "(data.max_prompt_tokens, data.decontaminate), name the column of solutions (data.train.solution_column) for a warm "
        "start, or choose other data"
    )


def eval_set_problems(source: ProblemSource, count: int | None, name: str) -> list[MathProblem]:
    """The first `count` problems of an evaluation set; None: all problems of a finite one.

    Raises:
        ValueError: where all problems of an endless set are asked for, or there is no problem.
    """
    if count is None and is_endless(source):
        raise ValueError(f"evaluation.problems=null asks for all problems of {name}, which is endless; set a number")
    problems = list(islice(source, count))
    if not problems:
        raise ValueError(f"data.evaluation.{name} has no problem; name other data, or remove it with ~data.evaluation.{name}")
    return problems


def sample_texts(source: ProblemSource, render: Callable[[MathProblem], str], count: int) -> list[str]:
    """Prompts and solutions of up to `count` problems, to train a tokenizer on."""
    return [text for p in islice(source, count) for text in (render(p), p.solution)]
