"""The order of problems: epochs, resumption, ranks, slots."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from oar_lightning.data.datamodule import BatchLoader, MathDataModule, benchmark_problems, sample_texts
from oar_lightning.data.stream import ProblemStream, SlotLoader, UpdatePlan
from oar_lightning.types import MathProblem


class Numbers:
    """Problems that are their own index."""

    def __init__(self, size: int | None) -> None:
        self.size = size

    def __getitem__(self, index: int) -> MathProblem:
        assert self.size is None or 0 <= index < self.size
        return MathProblem(f"q{index}", str(index), solution=f"s{index}")


def answers(problems: list[MathProblem] | tuple[MathProblem, ...]) -> list[int]:
    return [int(p.answer) for p in problems]


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
    whole = ProblemStream(Numbers(7), seed=2)
    whole.take(10)
    resumed = ProblemStream(Numbers(7), seed=2)
    resumed.position = whole.position
    assert answers(resumed.take(9)) == answers(whole.take(9))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("size", [7, None])
def test_ranks_share_out_what_one_would_take(world: int, size: int | None) -> None:
    alone = ProblemStream(Numbers(size), seed=0)
    ranks = [ProblemStream(Numbers(size), seed=0, rank=r, world_size=world) for r in range(world)]
    for _ in range(4):
        together = answers(alone.take(5 * world))
        shares = [answers(stream.take(5)) for stream in ranks]
        assert [shares[i % world][i // world] for i in range(5 * world)] == together
    assert len({stream.position for stream in (alone, *ranks)}) == 1


PLAN = UpdatePlan(problems=3, group_size=2, inner_epochs=2, minibatches=2, microbatches=2)


def slots(loader: SlotLoader, count: int) -> list[tuple[Any, ...]]:
    return [
        (answers(s.problems), s.rollout, s.inner_epoch, s.minibatch, s.microbatch, s.first)
        for s in itertools.islice(loader, count)
    ]


def test_slots_in_order_and_problems_in_the_first_only() -> None:
    loader = SlotLoader(ProblemStream(Numbers(None), seed=0), PLAN, steps=8)
    assert (PLAN.steps_per_rollout, PLAN.slots_per_rollout, len(loader)) == (4, 8, 16)
    seen = slots(loader, 16)
    expected_order = [(r, e, m, u) for r in range(2) for e in range(2) for m in range(2) for u in range(2)]
    assert [s[1:5] for s in seen] == expected_order
    assert [s[0] for s in seen] == [[0, 1, 2], *[[]] * 7, [3, 4, 5], *[[]] * 7]
    assert [s[5] for s in seen] == [True, *[False] * 7] * 2


@pytest.mark.parametrize("done", [0, 1, 5, 8, 11])
def test_a_slot_loader_resumes_anywhere(done: int) -> None:
    whole = SlotLoader(ProblemStream(Numbers(5), seed=1), PLAN, steps=16)
    slots(whole, done)
    resumed = SlotLoader(ProblemStream(Numbers(5), seed=1), PLAN, steps=16)
    resumed.load_state_dict(whole.state_dict())
    assert slots(resumed, 20) == slots(whole, 20)


def test_a_batch_loader_resumes() -> None:
    whole = BatchLoader(ProblemStream(Numbers(5), seed=1), 3, steps=4)
    assert len(whole) == 4
    for batch in itertools.islice(whole, 2):
        assert len(batch) == 3
    resumed = BatchLoader(ProblemStream(Numbers(5), seed=1), 3, steps=4)
    resumed.load_state_dict(whole.state_dict())
    assert [answers(b) for b in itertools.islice(resumed, 4)] == [answers(b) for b in itertools.islice(whole, 4)]


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"problems": 0}, r"update\.problems must be >= 1, got 0"),
        ({"inner_epochs": 0}, r"update\.inner_epochs must be >= 1"),
        ({"minibatches": 0}, r"update\.minibatches must be >= 1"),
        ({"microbatches": -1}, r"update\.microbatches must be >= 1, got -1"),
        ({"group_size": 1}, r"update\.group_size must be >= 2 .*got 1"),
        ({"problems": 2, "group_size": 2, "minibatches": 5}, r"update\.minibatches=5 is more than the 4 completions"),
    ],
)
def test_bad_plans_name_their_key(arguments: dict[str, int], pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        UpdatePlan(**arguments)


def test_benchmarks() -> None:
    assert answers(benchmark_problems(Numbers(None), 3, "x")) == [0, 1, 2]
    assert answers(benchmark_problems(Numbers(4), 9, "x")) == [0, 1, 2, 3]
    assert answers(benchmark_problems(Numbers(4), None, "x")) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"evaluation\.problems=null.*chain, which is endless; set a number"):
        benchmark_problems(Numbers(None), None, "chain")


def test_texts_for_a_tokenizer() -> None:
    assert sample_texts(Numbers(2), lambda p: p.question + "?", 5) == ["q0?", "s0", "q1?", "s1"]
    assert len(sample_texts(Numbers(None), lambda p: p.question, 5)) == 10


def test_the_data_module_gives_slots_to_a_plan_and_batches_to_a_size() -> None:
    assert isinstance(MathDataModule(Numbers(5), 0, 3, PLAN).train_dataloader(), SlotLoader)
    loader = MathDataModule(Numbers(5), 0, 3, 4).train_dataloader()
    assert isinstance(loader, BatchLoader)
    assert (len(loader), loader.batch_size) == (3, 4)
