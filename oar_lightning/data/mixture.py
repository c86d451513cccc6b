"""Several problem sources as one: each problem is drawn from one of them."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping

from oar_lightning.data.stream import ProblemSource, is_endless
from oar_lightning.types import MathProblem


class Mixture:
    """An endless source that draws from others. Draw `i` takes a source with probability proportional to its weight, by a
    generator determined by (seed, i). Each source goes through its own epochs; a problem's ``source`` is its source's name.

    Raises:
        ValueError: for a source without a weight, a weight without a source, or one that is not positive.
    """

    def __init__(self, sources: Mapping[str, ProblemSource], weights: Mapping[str, float]) -> None:
        if not sources:
            raise ValueError(
                "data.train.sources names no source; give at least one, e.g. data/train@data.train.sources.math=math"
            )
        unknown, missing = sorted(set(weights) - set(sources)), sorted(set(sources) - set(weights))
        if unknown:
            raise ValueError(f"data.train.weights names {unknown}, which data.train.sources lacks; it has {sorted(sources)}")
        if missing:
            raise ValueError(f"data.train.weights lacks {missing}; set data.train.weights.{missing[0]}, or remove the source")
        for name, weight in weights.items():
            if not isinstance(weight, int | float) or not 0 < weight < float("inf"):
                raise ValueError(f"data.train.weights.{name} must be > 0, got {weight}; remove the source to leave it out")
        self.sources = dict(sources)
        self.weights = dict(weights)
        self.endless = True

    def __iter__(self) -> Iterator[MathProblem]:
        return self.shuffled(0, 0)

    def shuffled(self, seed: int, epoch: int, start: int = 0) -> Iterator[MathProblem]:
        """The draws from `start` on. They never end, so `epoch` is always 0 and ignored."""
        # the position of each source after `start` draws: the choices are cheap to repeat
        skip = dict.fromkeys(self.sources, 0)
        for position in range(start):
            skip[self._choice(seed, position)] += 1
        walks = {name: _epochs(source, name, seed, skip[name]) for name, source in self.sources.items()}
        for position in itertools.count(start):
            name = self._choice(seed, position)
            yield dataclasses.replace(next(walks[name]), source=name)

    def _choice(self, seed: int, position: int) -> str:
        rng = random.Random(f"mixture/{seed}/{position}")
        return rng.choices(list(self.sources), [self.weights[name] for name in self.sources])[0]


def examples(source: ProblemSource) -> Iterator[MathProblem]:
    """A source's first problem; of a mixture that of each of its sources."""
    if not isinstance(source, Mixture):
        yield from itertools.islice(source, 1)
        return
    for name, inner in source.sources.items():
        yield from (dataclasses.replace(problem, source=name) for problem in examples(inner))


def parts(source: ProblemSource) -> Iterator[ProblemSource]:
    """The sources that a mixture is made of, however deep; of another source itself."""
    if not isinstance(source, Mixture):
        yield source
        return
    for inner in source.sources.values():
        yield from parts(inner)


def _epochs(source: ProblemSource, name: str, seed: int, skip: int) -> Iterator[MathProblem]:
    """A source's epochs one after the other, without the first `skip` problems."""
    if is_endless(source):
        yield from source.shuffled(seed, 0, skip)
    for epoch in itertools.count():
        empty = True
        for problem in source.shuffled(seed, epoch):
            empty = False
            # walked, not jumped over: a streaming source knows the length of an epoch only at its end
            if skip:
                skip -= 1
            else:
                yield problem
        if empty:
            raise ValueError(f"data.train.sources.{name} has no problem; name other data, or remove it")
