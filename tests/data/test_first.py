"""The first problems of a source, again and again."""

from __future__ import annotations

from support.numbered import Numbers, answers

from oar_lightning.data.first import FirstProblems
from oar_lightning.data.stream import ProblemSource, ProblemStream, is_endless


def test_each_epoch_has_the_same_problems_in_another_order() -> None:
    source = FirstProblems(Numbers(100), 4)
    assert isinstance(source, ProblemSource)
    assert not is_endless(source)
    first = answers(list(Numbers(100)))[:4]
    assert answers(list(source)) == first
    stream = ProblemStream(source, seed=0)
    epochs = [answers(stream.take(4)) for _ in range(6)]
    assert all(sorted(epoch) == sorted(first) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert answers(list(source.shuffled(0, 2, 1))) == answers(list(source.shuffled(0, 2)))[1:]
