"""pass@k and votes against brute force, bootstrap against simulation, evaluation as a side-effect-free measurement."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
import torch
from support.fixtures import make_stage, tiny_policy
from support.results import PROBLEMS, VowelAccuracy, run_evaluation

from oar_lightning.answers.reward import Accuracy, Completion
from oar_lightning.answers.verifier import Verdict, Verifier
from oar_lightning.evaluation.evaluate import EvaluatedBatch, EvaluationConfig, answer_classes, answers_match, evaluate
from oar_lightning.evaluation.metrics import evaluation_metrics
from oar_lightning.evaluation.result import ProblemResult
from oar_lightning.rollout import SamplingConfig
from oar_lightning.types import MathProblem


def test_answer_classes_join_what_the_verifier_calls_the_same() -> None:
    """Numbers modulo 10 as the truth: every partition by it is found, whatever the order, in few calls."""
    calls = 0

    def same(first: Sequence[str], second: Sequence[str]) -> list[bool]:
        nonlocal calls
        calls += 1
        return [int(a) % 10 == int(b) % 10 for a, b in zip(first, second, strict=True)]

    rng = random.Random(0)
    answers = [[rng.choice([None, *map(str, range(30))]) for _ in range(8)] for _ in range(50)]
    correct = [[int(a is not None and int(a) % 10 == 7) for a in row] for row in answers]
    classes = answer_classes(answers, correct, same)
    for row, numbers in zip(answers, classes, strict=True):
        for (a, n), (b, m) in itertools.product(zip(row, numbers, strict=True), repeat=2):
            if a is None or b is None:
                assert (n is None) == (a is None)
            else:
                assert (n == m) == (int(a) % 10 == int(b) % 10)
        seen = list(dict.fromkeys(n for n in numbers if n))
        assert seen == list(range(1, len(seen) + 1)), "numbered in order of appearance"
        assert all((n == 0) == (a is not None and int(a) % 10 == 7) for a, n in zip(row, numbers, strict=True))
    assert calls <= 8, "one call a round, not one a problem"


def test_answers_that_take_too_long_to_compare_are_compared_twice_at_most() -> None:
    """`?` answers take too long with any other; plain ones are joined as ever."""
    asked: list[tuple[str, str]] = []

    def same(first: Sequence[str], second: Sequence[str]) -> list[bool | None]:
        asked.extend(zip(first, second, strict=True))
        return [None if "?" in a + b else a[0] == b[0] for a, b in zip(first, second, strict=True)]

    slow = [f"?{i}" for i in range(12)]
    answers = [[*slow[:3], "a1", "b1", *slow[3:], "a2", "b2", None], ["a1", "a2", "b1"]]
    classes = answer_classes(answers, [[0] * len(row) for row in answers], same)
    of = dict(zip(answers[0], classes[0], strict=True))
    assert len({of[text] for text in slow}) == 12
    assert len({of["a1"], of["b1"], *(of[text] for text in slow)}) == 14
    assert (of["a2"], of["b2"], of[None]) == (of["a1"], of["b1"], None)
    assert classes[1] == [1, 1, 2]
    assert sum("?" in a + b for a, b in asked) <= 2 * len(answers[0])  # each pair once would be 150


def test_answers_are_compared_by_the_accuracy_terms_verifier_or_by_text() -> None:
    accuracy = Accuracy()
    assert answers_match(accuracy)(["1,000", "2"], ["1000", "3"]) == [True, False]
    assert answers_match(VowelAccuracy())(["1,000", "2"], ["1000", "2"]) == [False, True]


def results_of(batches: list[EvaluatedBatch]) -> list[ProblemResult]:
    return [r for batch in batches for r in batch.results]


def test_evaluation_is_paired_and_leaves_the_training_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = results_of(run_evaluation())
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other = results_of(run_evaluation(step=7)), results_of(run_evaluation(seed=1))
    assert again == first
    assert [r.completions for r in other] != [r.completions for r in first]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_batch_size_and_where_it_goes_on_change_nothing(size: int) -> None:
    expected = results_of(run_evaluation())
    batches = run_evaluation(batch_problems=size)
    assert results_of(batches) == expected
    assert [len(b.results) for b in batches] == [min(size, 5 - i) for i in range(0, 5, size)]
    resumed = run_evaluation(batch_problems=size, start=1)
    assert results_of(resumed) == expected[1:]
    assert [len(b.results) for b in resumed][-1] == len(batches[-1].results) - (size == 5), "back on the same batches"
    assert run_evaluation(start=5) == []


def test_evaluation_counts_by_problem() -> None:
    (batch,) = run_evaluation()
    assert batch.rollouts.problems == tuple(p for p in PROBLEMS for _ in range(4))
    for place, (problem, r) in enumerate(zip(PROBLEMS, batch.results, strict=True)):
        assert r.is_about(problem)
        assert (r.gold, r.level) == (problem.answer, problem.level)
        assert r.correct == tuple((sum(map(ord, text)) + place) % 2 for text in r.completions)
        assert r.rewards == tuple(map(float, r.correct))
        assert r.completions == batch.rollouts.completions[4 * place : 4 * place + 4]
        assert r.greedy_completion is not None
        assert r.greedy_correct == (sum(map(ord, r.greedy_completion)) + place) % 2
    (without,) = run_evaluation(greedy=False)
    assert {(r.greedy_completion, r.greedy_correct) for r in without.results} == {(None, None)}
    (single,) = run_evaluation(samples=1)
    assert evaluation_metrics(single.results)["avg_at_1"] == evaluation_metrics(single.results)["pass_at_1"]


class Half:
    """An accuracy of one half."""

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float]:
        return [0.5] * len(completions)


def test_half_an_accuracy_is_not_correct() -> None:
    policy = tiny_policy()
    config = EvaluationConfig(samples=2, greedy=False)
    (batch,) = evaluate(policy.model, make_stage(policy, Half()), PROBLEMS, SamplingConfig(max_new_tokens=4), config)
    assert {r.correct for r in batch.results} == {(0, 0)}


class Absent:
    """An accuracy that applies to nothing."""

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[None]:
        return [None] * len(completions)


def test_completions_that_accuracy_does_not_apply_to_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    policy = tiny_policy()
    config = EvaluationConfig(samples=2, greedy=False)
    (batch,) = evaluate(policy.model, make_stage(policy, Absent()), PROBLEMS, SamplingConfig(max_new_tokens=4), config)
    assert "does not apply to 10 of 10" in caplog.text
    assert {r.rewards for r in batch.results} == {(None, None)}
    assert "NaN" not in batch.results[0].to_json()


def test_answers_that_were_not_judged_in_time_are_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Verifier, "__call__", lambda self, golds, answers: [Verdict.TIMEOUT] * len(golds))
    policy = tiny_policy()
    stage = make_stage(policy, Accuracy())
    list(evaluate(policy.model, stage, PROBLEMS, SamplingConfig(max_new_tokens=4), EvaluationConfig(samples=2, greedy=False)))
    assert "10 of 10 answers were not judged in time and are counted as incorrect" in caplog.text


@pytest.mark.parametrize(("key", "value"), [("every_n_steps", -1), ("problems", 0), ("samples", 0), ("batch_problems", 0)])
def test_bad_settings_name_their_key(key: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"evaluation\.{key} must be .*{value}"):
        EvaluationConfig(**{key: value})
