"""The order of problems: epochs, resumption, ranks, slots."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from support.numbered import Numbers, answers
from torch.utils.data import DataLoader, IterableDataset

from oar_lightning.common.config_check import ConfigError
from oar_lightning.data.stream import ProblemStream, check_kept, eval_set_problems, sample_texts
from oar_lightning.training.datamodule import MathDataModule
from oar_lightning.training.supervised import SupervisedConfig
from oar_lightning.types import MathProblem


def even_only(problem: MathProblem) -> str | None:
    return "odd" if int(problem.answer) % 2 else None


def test_each_problem_once_an_epoch_in_a_new_order() -> None:
    stream = ProblemStream(Numbers(10), seed=0)
    taken = list(itertools.chain.from_iterable(answers(stream.take(3)) for _ in range(20)))
    epochs = [taken[i : i + 10] for i in range(0, 60, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6
    assert answers(ProblemStream(Numbers(10), seed=0).take(60)) == taken
    assert answers(ProblemStream(Numbers(10), seed=1).take(60)) != taken


def test_more_than_an_epoch_at_once() -> None:
    assert Counter(answers(ProblemStream(Numbers(4), seed=0).take(10))).most_common(1)[0][1] == 3


def test_an_endless_source_is_taken_in_its_own_order() -> None:
    stream = ProblemStream(Numbers(None), seed=3)
    assert answers(stream.take(3)) + answers(stream.take(2)) == [0, 1, 2, 3, 4]


def test_resuming_is_going_on() -> None:
    for taken in range(16):
        whole = ProblemStream(Numbers(7), seed=2, keep=even_only)
        whole.take(taken)
        resumed = ProblemStream(Numbers(7), seed=2, keep=even_only)
        resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
        assert answers(resumed.take(9)) == answers(whole.take(9))
        assert resumed.state_dict() == whole.state_dict()


def test_an_older_position_rewinds_an_open_stream() -> None:
    stream = ProblemStream(Numbers(7), seed=2)
    state = stream.state_dict()
    first = answers(stream.take(5))
    stream.load_state_dict(state)
    assert answers(stream.take(5)) == first


@pytest.mark.parametrize(("size", "count", "found"), [(4, 3, 3), (4, 4, 4), (4, 9, 4), (1, 5, 1), (None, 9, 9)])
def test_the_first_epoch_repeats_nothing(size: int | None, count: int, found: int) -> None:
    stream = ProblemStream(Numbers(size), seed=0)
    problems = answers(stream.of_first_epoch(count))
    assert len(problems) == len(set(problems)) == found
    assert problems == answers(ProblemStream(Numbers(size), seed=0).take(found))


def test_dropped_problems_are_counted_by_reason() -> None:
    stream = ProblemStream(Numbers(None), seed=0, keep=lambda p: "small" if int(p.answer) < 3 else even_only(p))
    assert answers(stream.take(3)) == [4, 6, 8]
    assert stream.dropped == {"small": 3, "odd": 3}
    assert stream.state_dict() == {"epoch": 0, "offset": 9, "kept": 3, "dropped": {"small": 3, "odd": 3}}


@pytest.mark.parametrize(("size", "where"), [(4, "a whole epoch"), (None, "10000 problems in a row")])
def test_a_stream_that_nothing_passes_ends(size: int | None, where: str) -> None:
    stream = ProblemStream(Numbers(size), seed=0, keep=lambda p: "too long")
    with pytest.raises(ValueError, match=rf"data\.train: {where} with none to train on \(too long: {size or 10000}\); relax"):
        stream.take(1)
    with pytest.raises(ValueError, match="the source is empty"):
        ProblemStream(Numbers(0), seed=0).take(1)
    with pytest.raises(ConfigError, match=rf"data\.train: .* with none to train on \(too long: {size or 10000}\)"):
        check_kept(Numbers(size), stream.keep)
    check_kept(Numbers(size), even_only)


def test_an_epoch_resumed_behind_its_last_problem_to_keep_is_no_empty_one() -> None:
    """Numbers 0..3 of which only one passes: whatever comes after it in the epoch, the stream goes on."""
    for taken in range(1, 5):
        stream = ProblemStream(Numbers(4), seed=0, keep=lambda p: None if p.answer == "2" else "other")
        stream.take(taken)
        resumed = ProblemStream(Numbers(4), seed=0, keep=stream.keep)
        resumed.load_state_dict(stream.state_dict())
        assert answers(resumed.take(2)) == [2, 2]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("size", [7, None])
def test_ranks_share_out_what_one_would_take(world: int, size: int | None) -> None:
    alone = ProblemStream(Numbers(size), seed=0, keep=even_only)
    ranks = [ProblemStream(Numbers(size), seed=0, rank=r, world_size=world, keep=even_only) for r in range(world)]
    for _ in range(4):
        together = answers(alone.take(5 * world))
        shares = [answers(stream.take(5)) for stream in ranks]
        assert [shares[i % world][i // world] for i in range(5 * world)] == together
    assert all(stream.state_dict() == alone.state_dict() for stream in ranks), "drops are counted once, whatever the ranks"


class Items(IterableDataset):
    """A stream inside of a torch dataset, `count` problems a worker."""

    def __init__(self, stream: ProblemStream, count: int) -> None:
        self.stream = stream
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return (int(self.stream.take(1)[0].answer) for _ in range(self.count))


@pytest.mark.parametrize("travel", [lambda stream: stream, lambda stream: pickle.loads(pickle.dumps(stream))])
def test_workers_of_a_loader_share_out_what_one_would_take(travel: Callable[[ProblemStream], ProblemStream]) -> None:
    """Forked workers inherit the stream, spawned ones get it pickled."""
    parent = ProblemStream(Numbers(50), seed=0, keep=even_only)
    started = answers(parent.take(3))  # an open walk must not be shared
    loader = DataLoader(Items(travel(parent), 8), batch_size=None, num_workers=2, multiprocessing_context="fork")
    seen = list(loader)
    assert started + seen == answers(ProblemStream(Numbers(50), seed=0, keep=even_only).take(19))
    assert len(set(seen)) == 16


def test_workers_and_ranks_multiply() -> None:
    seen = []
    for rank in range(2):
        stream = ProblemStream(Numbers(50), seed=0, rank=rank, world_size=2)
        seen.append(list(DataLoader(Items(stream, 5), batch_size=None, num_workers=2, multiprocessing_context="fork")))
    together = answers(ProblemStream(Numbers(50), seed=0).take(20))
    # worker w of rank r is shard 2 r + w of 4, and a loader takes turns with its workers
    assert seen == [[together[4 * i + 2 * rank + w] for i in range(5) for w in range(2)] for rank in range(2)]


def test_benchmarks() -> None:
    assert answers(eval_set_problems(Numbers(None), 3, "x")) == [0, 1, 2]
    assert answers(eval_set_problems(Numbers(4), 9, "x")) == [0, 1, 2, 3]
    assert answers(eval_set_problems(Numbers(4), None, "x")) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"evaluation\.problems=null.*chain, which is endless; set a number"):
        eval_set_problems(Numbers(None), None, "chain")
    with pytest.raises(ValueError, match=r"data\.evaluation\.x has no problem"):
        eval_set_problems(Numbers(0), None, "x")


def test_texts_for_a_tokenizer() -> None:
    assert sample_texts(Numbers(2), lambda p: p.question + "?", 5) == ["q0?", "s0", "q1?", "s1"]
    assert len(sample_texts(Numbers(None), lambda p: p.question, 5)) == 10


def test_what_is_dropped_is_a_metric() -> None:
    data = MathDataModule(
        Numbers(None), 0, 3, SupervisedConfig(batch_size=4), keep=lambda p: "prompt too long" if int(p.answer) < 3 else None
    )
    assert data.metrics() == {}
    assert answers(next(iter(data.train_dataloader()))) == [3, 4, 5, 6]
    assert data.dropped == {"prompt too long": 3}
    assert data.metrics() == {"data/dropped/prompt_too_long": 3.0}
