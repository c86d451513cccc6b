"""Mixtures: shares, epochs of each source, resumption, and weights that make no sense."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.data.mixture import Mixture, parts
from oar_lightning.data.stream import ProblemSource, ProblemStream, is_endless
from oar_lightning.types import MathProblem


class Letters:
    """A finite source whose epochs are rotations."""

    def __init__(self, letters: str) -> None:
        self.letters = letters

    def __iter__(self) -> Iterator[MathProblem]:
        return (MathProblem(letter, letter, source="own") for letter in self.letters)

    def shuffled(self, seed: int, epoch: int, start: int = 0) -> Iterator[MathProblem]:
        cut = (seed + epoch) % max(len(self.letters), 1)
        return itertools.islice(Letters(self.letters[cut:] + self.letters[:cut]), start, None)


def mixture() -> Mixture:
    return Mixture({"a": Letters("abcde"), "x": Letters("xyz")}, {"a": 3.0, "x": 1.0})


def drawn(problems: Iterator[MathProblem], count: int) -> list[tuple[str, str]]:
    return [(p.source, p.question) for p in itertools.islice(problems, count)]


def test_shares_follow_the_weights() -> None:
    counts = Counter(source for source, _ in drawn(mixture().shuffled(0, 0), 4000))
    assert counts["a"] / 4000 == pytest.approx(0.75, abs=4 * math.sqrt(0.75 * 0.25 / 4000))
    assert counts["a"] + counts["x"] == 4000


def test_each_source_goes_through_its_own_epochs() -> None:
    seen = drawn(mixture().shuffled(1, 0), 400)
    for name, size in (("a", 5), ("x", 3)):
        own = [question for source, question in seen if source == name]
        source = mixture().sources[name]
        epochs = [[p.question for p in source.shuffled(1, epoch)] for epoch in range(len(own) // size + 1)]
        assert own == list(itertools.chain.from_iterable(epochs))[: len(own)]


def test_draws_depend_on_seed_and_position() -> None:
    whole = drawn(mixture().shuffled(2, 0), 120)
    assert drawn(mixture().shuffled(3, 0), 120) != whole
    for start in (0, 1, 7, 60, 119):
        assert drawn(mixture().shuffled(2, 0, start), 120 - start) == whole[start:]


def test_parts_of_mixtures_of_mixtures() -> None:
    inner = mixture()
    outer = Mixture({"deep": inner, "z": Letters("z")}, {"deep": 1.0, "z": 1.0})
    assert list(parts(outer)) == [*inner.sources.values(), outer.sources["z"]]
    letters = Letters("a")
    assert list(parts(letters)) == [letters]


def test_endless_sources_mix_too() -> None:
    chain = ChainProblems(ChainTask())
    source = Mixture({"chain": chain, "x": Letters("xyz")}, {"chain": 1, "x": 1})
    assert isinstance(source, ProblemSource)
    assert is_endless(source)
    whole = drawn(source.shuffled(0, 0), 60)
    generated = [question for name, question in whole if name == "chain"]
    assert generated == [chain[i].question for i in range(len(generated))]
    assert drawn(source.shuffled(0, 0, 25), 35) == whole[25:]
    assert len(drawn(iter(source), 9)) == 9


def test_a_stream_over_it_resumes_exactly() -> None:
    stream = ProblemStream(mixture(), seed=4, keep=lambda p: "no b" if p.question == "b" else None)
    stream.take(50)
    resumed = ProblemStream(mixture(), seed=4, keep=stream.keep)
    resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert resumed.take(40) == stream.take(40)
    assert resumed.dropped == stream.dropped
    assert stream.dropped["no b"] > 0


@pytest.mark.parametrize(
    ("sources", "weights", "expected"),
    [
        ({}, {}, r"data\.train\.sources names no source"),
        ({"a": 1}, {"a": 1, "b": 1}, r"data\.train\.weights names \['b'\], which data\.train\.sources lacks; it has \['a'\]"),
        ({"a": 1, "b": 1}, {"a": 1}, r"data\.train\.weights lacks \['b'\]; set data\.train\.weights\.b"),
        ({"a": 1}, {"a": 0}, r"data\.train\.weights\.a must be > 0, got 0; remove the source"),
        ({"a": 1}, {"a": -1.5}, r"weights\.a must be > 0, got -1\.5"),
        ({"a": 1}, {"a": float("nan")}, r"weights\.a must be > 0, got nan"),
        ({"a": 1}, {"a": float("inf")}, r"weights\.a must be > 0, got inf"),
    ],
)
def test_weights_that_make_no_sense(sources: dict[str, Any], weights: dict[str, float], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Mixture({name: Letters("ab") for name in sources}, weights)


def test_an_empty_source_is_an_error_not_a_hang() -> None:
    with pytest.raises(ValueError, match=r"data\.train\.sources\.x has no problem"):
        drawn(Mixture({"x": Letters("")}, {"x": 1.0}).shuffled(0, 0), 1)
