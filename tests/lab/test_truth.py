"""What each source knows, against the task's own generator and by hand."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from support.toy import rollouts_of

from oar_lightning.data.chain.credit import ChainCredit, step_ends
from oar_lightning.lab.measures import measures_of
from oar_lightning.lab.truth import FIRST_ERROR, STEPS, FirstError, FirstWrongStep, Source, Spans, around_free, monte_carlo
from oar_lightning.lab.types import Estimate, Studied, Truth
from oar_lightning.types import CausalSpans, MathProblem, Prefix


def characters(texts: list[str], correct: list[bool | None], problems: list[MathProblem] | None = None) -> Studied:
    """Completions of which every character is a token; all but the last two are reasoning."""
    sequences = [{"before": [1], "reasoning": [2] * (len(t) - 2), "answer": [3, 3]} for t in texts]
    rollouts = dataclasses.replace(
        rollouts_of(sequences),
        completions=tuple(texts),
        problems=tuple(problems or [MathProblem("q", "1")] * len(texts)),
        token_spans=tuple(tuple((i, i + 1) for i in range(len(t))) for t in texts),
    )
    nothing = torch.zeros(rollouts.token_ids.shape)
    rows = tuple(range(len(texts)))
    return Studied(rollouts, rows, tuple(map(str, rows)), tuple(correct), nothing, nothing, rollouts.reasoning_mask)


def marked(studied: Studied, marks: torch.Tensor, row: int) -> str:
    """The characters of a completion that are marked."""
    wanted = marks[row, studied.rollouts.response_mask[row]].tolist()
    return "".join(c if w else "." for c, w in zip(studied.rollouts.completions[row], wanted, strict=True))


@functools.cache
def chain_problem() -> MathProblem:
    from oar_lightning.data.chain.task import ChainProblems, ChainTask

    return next(iter(ChainProblems(ChainTask(min_steps=3, max_steps=3, noise=0.0))))


def test_a_task_s_rules() -> None:
    problem = chain_problem()
    right = problem.solution
    studied = characters([right, right], [True, None], [problem] * 2)
    found = Spans(ChainCredit("results"))("results", studied)
    assert found.name == "results"
    assert found.steps is None
    results = [s for s in marked(studied, found.decisive, 0).replace(".", " ").split() if s]
    assert len(results) == 3
    assert all(f"={r}" in right for r in results)
    assert bool((found.known == studied.rollouts.reasoning_mask).all())


def test_the_first_error_is_known_of_wrong_completions_only() -> None:
    problem = chain_problem()
    last = problem.solution.rindex("=")
    first = problem.solution.index("=")
    wrong = problem.solution[: last + 1] + "99" + problem.solution[last + 1 :].lstrip("0123456789")
    wrong = wrong.replace("boxed{", "boxed{9")
    studied = characters([problem.solution, wrong], [True, False], [problem] * 2)
    found = FirstError(ChainCredit("first_error"), step_ends)("first_error", studied)
    assert not bool(found.known[0].any())
    assert marked(studied, found.decisive, 1).strip(".") == "99"
    assert found.steps is not None
    numbers = found.steps[1, studied.rollouts.response_mask[1]].tolist()
    assert (numbers[first], numbers[last + 1], numbers[-1]) == (0, 2, -1)


def test_mr_gsm8k_s_columns() -> None:
    steps = ["Two and two is 4.", "4 and 1 is 6.", "So 6."]
    text = "\n".join(steps) + "!!"

    def problem(number: Any, own: Any = steps) -> MathProblem:
        return MathProblem("q", "5", extra={STEPS: own, FIRST_ERROR: number})

    rows = [
        problem(2),
        problem("3"),
        problem("N/A"),
        problem("\u00b2"),
        problem(4),
        problem(0),
        problem(1, ["another", "text"]),
        MathProblem("q", "5"),
        problem(2.5),
        problem(3.0),  # of a column that lacks some
    ]
    studied = characters([text] * len(rows), [False] * len(rows), rows)
    found = FirstWrongStep()("wrong", studied)
    assert found.known.any(1).tolist() == [True, True, *[False] * 7, True]
    assert marked(studied, found.decisive, 0).strip(".") == steps[1].rstrip(".")
    assert marked(studied, found.decisive, 1).strip(".") == steps[2].rstrip(".")
    assert found.steps is not None
    numbers = found.steps[0, studied.rollouts.response_mask[0]].tolist()
    assert [numbers.count(i) for i in range(3)] == [len(s) for s in steps]


def test_a_source_of_steps_tells_nothing_of_the_first_error_s_token() -> None:
    """Each token of the wrong step was a hit on the first error."""
    steps = ["Two and two is 4.", "4 and 1 is 6.", "So 6."]
    text = "\n".join(steps) + "!!"
    studied = characters([text], [False], [MathProblem("q", "5", extra={STEPS: steps, FIRST_ERROR: 2})])
    scores = torch.zeros(studied.rollouts.token_ids.shape)
    scores[0, studied.rollouts.response_mask[0].nonzero()[text.index("and 1")]] = 1.0  # in the wrong step, and right itself
    estimates = [Estimate("mine", scores, scores, False, 0.0)]
    truth = FirstWrongStep()("wrong", studied)
    found = {m.key: m.values["mine"][0] for m in measures_of(truth, estimates, studied)}
    assert found["wrong.right_step"] == 1.0
    assert not {"wrong.hit_1", "wrong.reciprocal_rank"} & set(found)
    by_token = {m.key for m in measures_of(dataclasses.replace(truth, whole_steps=False), estimates, studied)}
    assert by_token - set(found) == {"wrong.hit_1", "wrong.reciprocal_rank"}


class Everywhere(Source):
    def locate(self, problem: MathProblem, completion: str, correct: bool | None) -> Any:
        return [(0, len(completion))], ()


def test_what_is_not_exact_is_not_known() -> None:
    found = Spans(lambda problem, text: CausalSpans(((0, 1),), exact="a" in text))(
        "x", characters(["abcd", "dcbb"], [True] * 2)
    )
    assert found.known.any(1).tolist() == [True, False]


def test_another_task_s_problems_are_refused() -> None:
    for source in (Spans(ChainCredit("results")), FirstError(ChainCredit("first_error"), step_ends)):
        source.check(chain_problem())
        with pytest.raises(ValueError, match="data=chain only"):
            source.check(MathProblem("What is 1 + 1?", "2"))


def test_values_are_differences_around_free_tokens() -> None:
    studied = characters(["abcdefgh"] * 3, [True, False, None])
    free = torch.zeros_like(studied.free)
    free[:, [2, 3, 6]] = True  # columns: one of the prompt is in front
    studied = dataclasses.replace(studied, free=free)
    prefixes = around_free(studied)
    assert prefixes == [Prefix(row, column) for row in (0, 1) for column in (2, 3, 4, 6, 7)], "shared by neighbours"
    rng = np.random.default_rng(0)
    rewards = {p: (rng.random(8 if p.column == 4 else 16) < 0.5).astype(float) for p in prefixes}
    rewards[Prefix(1, 7)] = np.zeros(0)
    found = monte_carlo(studied, rewards, decisive=0.2)
    assert found.known.any(1).tolist() == [True, False, False], "a prefix of the second has no continuation"
    assert found.values is not None
    assert found.halves is not None
    for column in (2, 3, 6):
        after, before = rewards[Prefix(0, column + 1)], rewards[Prefix(0, column)]
        assert float(found.values[0, column]) == pytest.approx(after.mean() - before.mean())
        halves = [after[k::2].mean() - before[k::2].mean() for k in (0, 1)]
        assert [float(half[0, column]) for half in found.halves] == pytest.approx(halves)
    first = monte_carlo(studied, rewards, 0.2, everywhere=8)
    assert first.values is not None
    assert first.halves is not None
    assert torch.equal(first.values, found.values)
    after, before = (rewards[Prefix(0, column)][:8] for column in (3, 2))
    halves = [after[k::2].mean() - before[k::2].mean() for k in (0, 1)]
    assert [float(half[0, 2]) for half in first.halves] == pytest.approx(halves)
    assert found.values[0].nonzero().flatten().tolist() == [c for c in (2, 3, 6) if found.values[0, c]]
    assert torch.equal(found.decisive[0], (found.values[0].abs() >= 0.2) & found.known[0])
    assert not bool(found.decisive[1:].any())


def test_a_single_continuation_has_no_second_half() -> None:
    studied = characters(["abcdef"], [True])
    free = torch.zeros_like(studied.free)
    free[0, 2] = True
    studied = dataclasses.replace(studied, free=free)
    found = monte_carlo(studied, {Prefix(0, 2): np.array([0.0, 1.0]), Prefix(0, 3): np.ones(1)}, decisive=0.2)
    assert found.values is not None
    assert found.halves is not None
    assert float(found.values[0, 2]) == 0.5
    assert [float(half[0, 2]) for half in found.halves] == pytest.approx([1.0, math.nan], nan_ok=True)


@pytest.mark.parametrize(("before", "after"), [(5, 7), (7, 5)])
def test_a_difference_that_is_just_the_limit_is_decisive(before: int, after: int) -> None:
    """0.7 - 0.5 is less than 0.2 in binary."""
    studied = characters(["abcdef"], [True])
    free = torch.zeros_like(studied.free)
    free[0, 2] = True
    studied = dataclasses.replace(studied, free=free)
    rewards = {Prefix(0, 2): np.arange(10) < before, Prefix(0, 3): np.arange(10) < after}
    found = monte_carlo(studied, {prefix: r.astype(float) for prefix, r in rewards.items()}, decisive=0.2)
    assert found.decisive[0].nonzero().flatten().tolist() == [2]
    assert found.values is not None
    assert float(found.values[0, 2]) == pytest.approx((after - before) / 10)


def test_measures_of_one_completion_by_hand() -> None:
    """Three tokens, of which the first decides."""
    studied = characters(["abcde"], [True])
    inside = studied.rollouts.reasoning_mask

    def on(*numbers: float) -> torch.Tensor:
        found = torch.zeros(inside.shape, dtype=torch.float64)
        found[inside] = torch.tensor(numbers, dtype=torch.float64)
        return found

    decisive = on(1, 0, 0).bool()
    estimate = Estimate("mine", on(3, 1, 2), on(1, -1, -1), True, 0.0)
    truth = Truth("mc", inside, decisive, on(-3, 1, 2))
    signs = Truth("mc", inside, decisive, on(0.5, 0.1, 0.1))
    outside = Truth("mc", inside, decisive, steps=on(-1, -1, 0).long())

    def measured(truth: Truth, key: str) -> float:
        return next(m.values["mine"][0] for m in measures_of(truth, [estimate], studied) if m.key == f"mc.{key}")

    assert measured(truth, "spearman") == pytest.approx(1.0), "sizes agree, whatever their signs"
    assert measured(truth, "auroc") == 1.0
    assert measured(signs, "sign") == 1.0, "of the decisive token alone"
    assert measured(signs, "sign_free") == pytest.approx(1 / 3)
    assert np.isnan(measured(outside, "right_step")), "the decisive token is in no step"
