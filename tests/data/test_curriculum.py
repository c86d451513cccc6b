"""Curricula: weights in closed form, what is taken of finite and endless sources, ranks, resumption, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from typing import Any

import pytest
from support.numbered import Numbers, answers

from oar_lightning.common.config_check import ConfigError
from oar_lightning.data import stream as streams
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.data.curriculum import Curriculum, DifficultyCurriculum, Draws
from oar_lightning.data.stream import ProblemStream
from oar_lightning.types import MathProblem

HALF = DifficultyCurriculum()


class Named(Numbers):
    """Numbers of which each has a level, its remainder by three."""

    def shuffled(self, seed: int, epoch: int, start: int = 0) -> Any:
        return (MathProblem(p.question, p.answer, level=str(int(p.answer) % 3)) for p in super().shuffled(seed, epoch, start))


def share(problems: list[MathProblem]) -> list[tuple[str, float]]:
    """Odd numbers are never solved, others always but for multiples of 4, half of the time."""
    return [(p.question, 0.0 if int(p.answer) % 2 else 0.5 if int(p.answer) % 4 == 0 else 1.0) for p in problems]


@pytest.mark.parametrize(
    ("rate", "progress", "expected"),
    [
        (None, 0.0, 1.0),
        (None, 0.9, 1.0),
        (0.5, 0.0, 1.0),
        (0.0, 0.0, 0.05 / 0.3),
        (1.0, 0.59, 0.05 / 0.3),
        (0.8, 0.0, 0.21 / 0.3),
        (0.49, 0.6, 1.0),
        (0.0, 1.0, 1.0),
        (0.5, 0.6, 0.05 / 1.05),
    ],
)
def test_the_weight_of_a_pass_rate(rate: float | None, progress: float, expected: float) -> None:
    assert HALF.weight(rate, progress) == pytest.approx(expected, rel=1e-12)


def test_stages_may_be_left_out() -> None:
    assert DifficultyCurriculum(second_stage=1.0).stage(0.999) == 1
    assert DifficultyCurriculum(second_stage=0.0).stage(0.0) == 2


def test_the_pass_rate_is_a_moving_average_that_begins_with_the_first_group() -> None:
    draws = Draws(HALF, 0, endless=False)
    found = [0.25, 1.0, float("nan"), 0.0, 2.0]
    draws.observe([("a", value) for value in found])
    assert draws.pass_rates == {"a": pytest.approx(((0.25 * 0.9 + 0.1) * 0.9) * 0.9 + 0.1, rel=1e-12)}, "NaN says nothing"


def test_what_an_endless_stream_takes_follows_the_weights_of_its_levels() -> None:
    """Of 3000 numbers walked, a third has each level: so many of each are taken as its weight says."""
    stream = ProblemStream(Named(None), 0, curriculum=HALF)
    stream.draws.observe([("0", 0.5), ("1", 0.1), ("2", 1.0)])
    taken = Counter(p.level for p in stream.take(1000))
    weights = {"0": 1.0, "1": 0.14 / 0.3, "2": 0.05 / 0.3}
    for level, weight in weights.items():
        expected = weight / sum(weights.values())
        assert taken[level] / 1000 == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 1000))
    assert stream.draws.metrics()["data/curriculum/passed_over_frac"] == pytest.approx(1 - sum(weights.values()) / 3, abs=0.04)
    assert stream.draws.metrics()["data/curriculum/weight/1"] == pytest.approx(0.14 / 0.3)


def test_seeds_pass_over_other_problems() -> None:
    problem, taken = MathProblem("q", "1", level="1"), []
    for seed in (0, 1, 0):
        draws = Draws(HALF, seed, endless=True)
        draws.observe([("1", 0.1)])  # its weight is 0.47
        taken.append([draws.takes(problem, 0, offset, 0.0) for offset in range(200)])
    assert taken[0] == taken[2] != taken[1]
    assert 60 < sum(taken[0]) < 130


def test_a_finite_set_is_taken_whole_once_then_by_each_problems_own_rate() -> None:
    stream = ProblemStream(Numbers(400), 0, curriculum=HALF)
    first = stream.take(400)
    assert sorted(answers(first)) == list(range(400)), "what was never tried is taken"
    stream.draws.observe(share(first))
    second = []
    while stream.epoch < 2 or not second:
        second += stream.take(1)
    taken = Counter(0.0 if n % 2 else 0.5 if n % 4 == 0 else 1.0 for n in answers(second))
    assert taken[0.5] in (100, 101)
    for rate, count in ((0.0, 200), (1.0, 100)):
        assert taken[rate] == pytest.approx(count / 6, abs=4 * math.sqrt(count * 5 / 36))
    assert stream.draws.metrics()["data/curriculum/kinds"] == 400
    assert not any("/pass_rate/" in name for name in stream.draws.metrics()), "no metric for each problem"


def test_ranks_take_together_what_one_takes() -> None:
    """Each rank knows the pass rates of all; they are observed in the order of one rank."""
    for size in (40, None):
        one = ProblemStream(Numbers(size), 1, curriculum=DifficultyCurriculum(by="problem"))
        several = [ProblemStream(Numbers(size), 1, rank, 3, curriculum=DifficultyCurriculum(by="problem")) for rank in range(3)]
        for number in range(12):
            whole = one.take(12, number / 12)
            parts = [stream.take(4, number / 12) for stream in several]
            assert [answers(part) for part in parts] == [answers(whole)[rank::3] for rank in range(3)]
            for stream in (one, *several):
                stream.draws.observe(share(whole))
        assert all(stream.state_dict() == one.state_dict() for stream in several)
        assert one.draws.passed_over > 0 or size is None


def test_resuming_is_going_on() -> None:
    whole, resumed = (ProblemStream(Numbers(7), 2, curriculum=HALF) for _ in range(2))
    for number in range(30):
        resumed = ProblemStream(Numbers(7), 2, curriculum=HALF)
        resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
        batches = [stream.take(3, number / 30) for stream in (whole, resumed)]
        assert batches[0] == batches[1]
        for stream, batch in zip((whole, resumed), batches, strict=True):
            stream.draws.observe(share(batch))
        assert resumed.state_dict() == whole.state_dict()
        assert resumed.draws.metrics() == whole.draws.metrics()
    assert whole.draws.passed_over > 0


def test_without_a_curriculum_a_stream_is_what_it_was() -> None:
    plain, unweighted = ProblemStream(Numbers(9), 4), ProblemStream(Numbers(9), 4, curriculum=Curriculum())
    assert answers(plain.take(30)) == answers(unweighted.take(30, 0.9))
    assert plain.state_dict() == unweighted.state_dict() == {"epoch": 3, "offset": 3, "kept": 3, "dropped": {}}
    assert plain.draws.metrics() == {}
    with_state = {**plain.state_dict(), "curriculum": {"pass_rates": {"a": 0.5}, "taken": 1, "passed_over": 2, "progress": 0.5}}
    weighted = ProblemStream(Numbers(9), 4, curriculum=HALF)
    weighted.load_state_dict(plain.state_dict())
    assert weighted.draws.pass_rates == {}
    weighted.load_state_dict(with_state)
    assert weighted.state_dict() == with_state


def test_a_curriculum_that_takes_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PATIENCE", 50)

    class Nothing(DifficultyCurriculum):
        def weight(self, pass_rate: float | None, progress: float) -> float:
            return 0.0

    with pytest.raises(ValueError, match="passed over 50 problems in a row"):
        ProblemStream(Numbers(5), 0, curriculum=Nothing()).take(1)


def test_kinds() -> None:
    problem = MathProblem("q", "1", source="math", level="Level 5", id="7", extra={"topic": ("a", "b")})
    assert HALF.kind(problem, endless=False) == "math 7"
    assert HALF.kind(problem, endless=True) == "math Level 5"
    assert DifficultyCurriculum(by="level").kind(problem, endless=False) == "math Level 5"
    assert DifficultyCurriculum(by="problem").kind(problem, endless=True) == "math 7"
    assert DifficultyCurriculum(by="topic").kind(problem, endless=True) == "math ('a', 'b')"
    assert DifficultyCurriculum(by="topic").kind(MathProblem("q", "1", source="math"), endless=True) == "math"
    assert HALF.kind(MathProblem("q", "1"), endless=False) == "q", "a problem without an id is its question"
    levels = {HALF.kind(p, endless=True) for p in itertools.islice(ChainProblems(ChainTask()), 200)}
    assert levels == {"chain 2", "chain 3", "chain 4"}


@pytest.mark.parametrize(
    ("by", "endless", "expected"),
    [
        ("auto", True, r"curriculum\.by=auto tells .* endless source apart by their level, and they have none"),
        ("level", False, r"curriculum\.by=level tells the problems of this source"),
        ("topic", False, r"curriculum\.by=topic: .* no such extra column, they have \['unit'\]"),
    ],
)
def test_problems_without_such_kinds_are_refused(by: str, endless: bool, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        DifficultyCurriculum(by=by).check(MathProblem("q", "1", extra={"unit": "m"}), endless)
    DifficultyCurriculum(by="problem").check(MathProblem("q", "1"), endless)


@pytest.mark.parametrize("settings", [{"floor": 0.0}, {"decay": 1.0}, {"second_stage": 1.1}, {"floor": 2.0}])
def test_values_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"curriculum\.{next(iter(settings))} must be"):
        DifficultyCurriculum(**settings)


def test_kinds_whose_names_are_alike_have_metrics_of_their_own() -> None:
    draws = Draws(HALF, 0, endless=True)
    draws.observe([("f <5", 1.0), ("f >5", 0.0), ("f_5", 0.5)])
    rates = {name.rpartition("/")[2]: value for name, value in draws.metrics().items() if "/pass_rate/" in name}
    assert rates == {"f__5": 1.0, "f__5_2": 0.0, "f_5": 0.5}
