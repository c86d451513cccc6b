"""Reward terms, their weights and metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch

from oar_lightning.answers.reward import Accuracy, Completion, Format, FunctionReward, Rewards, SoftOverlong, numbers_of
from oar_lightning.objective.advantage import group_advantages
from oar_lightning.types import MathProblem


def completion(answer: str | None, truncated: bool = False) -> Completion:
    return Completion(f"text {answer}", answer, truncated, 5)


def problems(*golds: str) -> list[MathProblem]:
    return [MathProblem("q", gold) for gold in golds]


COMPLETIONS = [completion("5.0"), completion("6"), completion(None), completion("5", truncated=True)]


def test_accuracy_judges_by_value_and_counts_verdicts() -> None:
    accuracy = Accuracy()
    assert accuracy(problems("5", "5", "5", "5"), COMPLETIONS) == [1.0, 0.0, 0.0, 1.0]
    assert accuracy.verdicts == {"correct": 2, "incorrect": 2}
    accuracy(problems("5"), [completion("x" * 2000)])
    assert accuracy.verdicts == {"unparseable": 1}, "each call counts anew"


def test_format_wants_an_answer_and_an_end() -> None:
    assert Format()(problems("5", "5", "5", "5"), COMPLETIONS) == [1.0, 1.0, 0.0, 0.0]


class Twice:
    """A plug-in that applies to some problems only."""

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float | None]:
        return [None if c.answer is None else 2.0 * c.num_tokens for c in completions]


def test_columns_metrics_and_weights() -> None:
    rewards = Rewards({"accuracy": Accuracy(), "format": Format(), "twice": Twice()}, {"format": 0.25})
    terms, metrics = rewards(problems("5", "5", "5", "5"), COMPLETIONS)
    assert terms[:, 0].tolist() == [1, 0, 0, 1]
    assert terms[:, 1].tolist() == [1, 1, 0, 0]
    assert terms[:2, 2].tolist() == [10, 10]
    assert math.isnan(terms[2, 2])
    assert rewards.weight_vector().tolist() == [1.0, 0.25, 1.0]
    assert rewards.term_metrics(terms) == {"rewards/accuracy": (2, 4), "rewards/format": (2, 4), "rewards/twice": (30, 3)}
    assert metrics == {
        "rewards/accuracy": 0.5,
        "rewards/format": 0.5,
        "rewards/twice": 10.0,
        "verdict/correct": 0.5,
        "verdict/incorrect": 0.5,
        "verdict/unparseable": 0.0,
        "verdict/timeout": 0.0,
    }


@pytest.mark.parametrize("weight", [math.nan, math.inf, None, True])
def test_a_weight_is_a_finite_number(weight: Any) -> None:
    """One that is NaN would make every reward NaN, of which nothing is learnt."""
    with pytest.raises(ValueError, match=r"reward\.weights\.format must be a finite number, got"):
        Rewards({"accuracy": Accuracy(), "format": Format()}, {"format": weight})


def test_a_term_that_applies_to_none_is_not_a_number() -> None:
    terms, metrics = Rewards({"twice": Twice()})(problems("5"), [completion(None)])
    assert terms.shape == (1, 1)
    assert math.isnan(terms[0, 0])
    assert math.isnan(metrics["rewards/twice"])


def test_errors_name_the_key() -> None:
    with pytest.raises(ValueError, match=r"reward\.terms is empty"):
        Rewards({})
    with pytest.raises(ValueError, match=r"reward\.weights names \['acuracy'\].*\['accuracy'\]"):
        Rewards({"accuracy": Accuracy()}, {"acuracy": 1.0})

    class Short:
        def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float]:
            return [1.0]

    with pytest.raises(ValueError, match=r"reward\.terms\.short returned 1 values for 4 completions; expected a list of 4"):
        Rewards({"short": Short()})(problems("5", "5", "5", "5"), COMPLETIONS)


def test_a_term_that_fails_in_a_run_is_named() -> None:
    def broken(problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float]:
        raise FileNotFoundError("prices.json")

    with pytest.raises(RuntimeError, match=r"reward\.terms\.mine raised FileNotFoundError: prices\.json") as caught:
        Rewards({"mine": broken})(problems("5", "5", "5", "5"), COMPLETIONS)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_soft_overlong_is_dapos_ramp() -> None:
    """0 up to max - buffer, then -(length - (max - buffer)) / buffer, -1 at the limit."""

    def punished(term: SoftOverlong, *lengths: int) -> list[float]:
        completions = [Completion("", None, n >= 100, n) for n in lengths]
        return term(problems(*["5"] * len(lengths)), completions)

    assert punished(SoftOverlong(100, 40), 1, 60, 70, 80, 99, 100) == pytest.approx([0, 0, -0.25, -0.5, -39 / 40, -1])
    assert punished(SoftOverlong(100), 80, 90, 100) == pytest.approx([0, -0.5, -1])
    assert punished(SoftOverlong(1), 0, 1) == [0, -1]


@pytest.mark.parametrize("buffer", [0, -1, 101])
def test_a_buffer_that_does_not_fit_names_its_key(buffer: int) -> None:
    with pytest.raises(ValueError, match=rf"overlong\.buffer must be in 1\.\.max_tokens=100 or null, got {buffer}"):
        SoftOverlong(100, buffer)


def half(problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float]:
    return [0.5] * len(completions)


def test_a_reward_function_by_its_import_path() -> None:
    assert FunctionReward(f"{__name__}.half")(problems("1", "2"), COMPLETIONS[:2]) == [0.5, 0.5]


@pytest.mark.parametrize("path", ["no_such_module.f", "math.no_such_function", "math.pi", "half", ""])
def test_a_path_that_is_no_function_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=rf"reward function path={path}"):
        FunctionReward(path)


@pytest.mark.parametrize(
    "returned",
    [
        [1, 0.5],
        (1.0, 0.5),
        numpy.array([1.0, 0.5], dtype="float16"),
        torch.tensor([1.0, 0.5], dtype=torch.bfloat16, requires_grad=True),
        [numpy.float32(1), torch.tensor(0.5)],
        [True, Fraction(1, 2)],
        (value for value in (numpy.bool_(True), 0.5)),
    ],
    ids=lambda values: type(values).__name__,
)
def test_numbers_of_every_kind_are_taken(returned: Any) -> None:
    assert numbers_of(returned, 2, "r") == [1.0, 0.5]


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (None, "returned None;"),
        (0.5, "returned 0.5 (float);"),
        ("ab", "returned 'ab' (str);"),
        ({0: 1.0, 1: 0.5}, "returned {0: 1.0, 1: 0.5} (dict);"),
        ([1.0], "returned 1 values for 2 completions;"),
        (numpy.zeros(3), "returned 3 values for 2 completions;"),
        (torch.zeros(2, 1), "returned [0.0] (list) for completion 0 of 2;"),
        (["0.5", "1"], "returned '0.5' (str) for completion 0 of 2;"),
        ([1.0, float("nan")], "returned nan (float) for completion 1 of 2;"),
        ([1.0, numpy.inf], "returned inf (float) for completion 1 of 2;"),
        ([10**400, 1], "(int) for completion 0 of 2;"),
        ([1.0, 1j], "returned 1j (complex) for completion 1 of 2;"),
        ([1.0, {}], "returned {} (dict) for completion 1 of 2;"),
    ],
    ids=str,
)
def test_anything_else_is_refused_with_its_name_and_what_is_expected(returned: Any, told: str) -> None:
    rewards = Rewards({"mine": lambda problems, completions: returned})
    with pytest.raises(ValueError, match=r"^reward\.terms\.mine returned ") as caught:
        rewards(problems("5", "5"), COMPLETIONS[:2])
    assert told in str(caught.value)
    assert str(caught.value).endswith("expected a list of 2 numbers, one a completion, None where the reward does not apply")


def test_a_reward_is_tried_out_before_long_work() -> None:
    problem = MathProblem("q", "5", id="p7", extra={"steps": 3})
    seen = []

    def watching(problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float]:
        seen.append((list(problems), list(completions)))
        return [problem.extra["steps"] for problem in problems]

    Rewards({"accuracy": Accuracy(), "watching": watching}).try_out([problem])
    assert seen == [([problem] * 2, [Completion("5", "5", False, 1)] * 2)]
    with pytest.raises(ValueError, match=r"reward\.terms\.watching raised KeyError: .*no extra column .* of problem .p8."):
        Rewards({"watching": watching}).try_out([MathProblem("q", "5", id="p8")])
    with pytest.raises(ValueError, match=r"reward\.terms\.none returned None; expected a list of 2 numbers"):
        Rewards({"none": lambda problems, completions: None}).try_out([problem])
    with pytest.raises(ValueError, match=r"reward\.terms\.alone returned 1 values for 2 completions"):
        Rewards({"alone": lambda problems, completions: [1.0]}).try_out([problem])


def with_tolerance(stated: object, answer: str) -> float:
    problem = MathProblem("q", "3.14", id="p", extra={"error": stated})
    return Accuracy(tolerance_column="error")([problem], [Completion(answer, answer, truncated=False, num_tokens=1)])[0]


def test_a_stated_tolerance_accepts_near_numbers() -> None:
    assert [with_tolerance(stated, "3.2") for stated in ("1e-1", 0.1, "1e-2", None, "")] == [1, 1, 0, 0, 0]
    assert with_tolerance(math.nan, "3.2") == 0, "JSON's NaN is a missing value"
    assert with_tolerance("1e-2", "3.14") == 1


@pytest.mark.parametrize("stated", ["a tenth", "-1", "nan", "1e999", -0.1])
def test_a_tolerance_that_is_no_number_is_named(stated: object) -> None:
    with pytest.raises(ValueError, match=r"problem 'p' has error=.*, which is no number >= 0"):
        with_tolerance(stated, "3.2")


def test_a_bad_tolerance_is_found_before_long_work_wherever_it_is() -> None:
    fine, bad = (MathProblem("q", "5", id=name, extra={"error": stated}) for name, stated in (("p", 0.1), ("p9", "a tenth")))
    Rewards({"accuracy": Accuracy(tolerance_column="error")}).try_out([fine, fine])
    Rewards({"accuracy": Accuracy()}).try_out([fine, bad])  # not asked for
    with pytest.raises(ValueError, match=r"problem 'p9' has error='a tenth', which is no number >= 0"):
        Rewards({"accuracy": Accuracy(tolerance_column="error")}).try_out([fine, bad])


def test_a_problem_without_the_column_is_judged_exactly() -> None:
    problems = [MathProblem("q", "3.14", extra={"error": 0.1}), MathProblem("q", "3.14"), MathProblem("q", "3.14")]
    answers = [Completion(text, text, truncated=False, num_tokens=1) for text in ("3.2", "3.2", "3.14")]
    assert Accuracy(tolerance_column="error")(problems, answers) == [1, 0, 1]


def test_a_column_that_no_problem_has_is_named() -> None:
    without, stated = MathProblem("q", "1", extra={"level": 2}), MathProblem("q", "1", extra={"tol": math.nan})
    rewards = Rewards({"accuracy": Accuracy(tolerance_column="tol")})
    for sources in ([[without], [stated, without]], [[without, stated]], [], [[]]):
        rewards.try_out(*sources)
    with pytest.raises(ValueError, match=r"accuracy\.tolerance_column=tol: no problem has .* are \['level'\]: .*, or to null"):
        rewards.try_out([without, without], [])
    with pytest.raises(ValueError, match=r"tolerance_column=tol: no problem has this column; there are \[\]"):
        rewards.try_out([MathProblem("q", "1")])


def test_what_is_no_reward_is_refused_with_what_makes_one() -> None:
    with pytest.raises(ValueError, match=r"reward\.terms\.lines is a dict and cannot be .* \+reward\.terms\.lines\.path="):
        Rewards({"accuracy": Accuracy(), "lines": {"path": "x.y"}})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"\['lines'\], which are not in .* leave the weight out: '~reward\.weights\.lines'"):
        Rewards({"accuracy": Accuracy()}, {"lines": 1.0})


def test_large_rewards_that_differ_little_are_told_apart() -> None:
    """In float32 the first two are equal, and all four advantages were at or above 0."""
    given = [1e4, 1e4 + 0.0005, 1e4 + 0.001, 1e4 + 0.0015]
    rewards = Rewards({"score": lambda problems, completions: given})
    terms, _ = rewards(problems("5", "5", "5", "5"), [completion("5")] * 4)
    found = group_advantages(terms, rewards.weight_vector(), 4).tolist()
    deviation = numpy.std(given, ddof=1)
    assert found == pytest.approx([(value - numpy.mean(given)) / (deviation + 1e-4) for value in given], rel=1e-6)
