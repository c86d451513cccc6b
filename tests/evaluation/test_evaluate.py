"""pass@k and votes against brute force, bootstrap against simulation, evaluation as a side-effect-free measurement."""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support.fixtures import make_stage, tiny_policy

from oar_lightning.answers.reward import Accuracy, Completion
from oar_lightning.evaluation.evaluate import EvaluatedBatch, EvaluationConfig, answer_classes, answers_match, evaluate
from oar_lightning.evaluation.metrics import bootstrap_interval, evaluation_metrics, level_groups, majority_vote, pass_at_k
from oar_lightning.evaluation.result import ProblemResult, ResultsFile, completions_table
from oar_lightning.rollout import SamplingConfig
from oar_lightning.training.callbacks.progress import accuracy_names, before_after_table
from oar_lightning.types import MathProblem


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one(n: int) -> None:
    correct = torch.tril(torch.ones(n + 1, n), -1)  # 0..n correct
    correct = correct[:, torch.randperm(n)]
    for k in range(1, n + 1):
        brute = [
            sum(any(row[i] > 0 for i in subset) for subset in itertools.combinations(range(n), k)) / math.comb(n, k)
            for row in correct.tolist()
        ]
        torch.testing.assert_close(pass_at_k(correct, k), torch.tensor(brute))


def test_pass_at_1_is_the_mean() -> None:
    correct = torch.randint(0, 2, (20, 6)).float()
    torch.testing.assert_close(pass_at_k(correct, 1), correct.mean(1))


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_needs_enough_samples(k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} needs 1 <= k <= 4"):
        pass_at_k(torch.ones(2, 4), k)


def test_bootstrap_interval_covers_the_truth_as_often_as_it_says() -> None:
    truth, hits, trials = 0.3, 0, 200
    for _ in range(trials):
        low, high = bootstrap_interval((torch.rand(80) < truth).float(), draws=400)
        hits += low <= truth <= high
    assert 0.89 <= hits / trials <= 0.99


def test_bootstrap_interval_has_the_width_of_the_normal_one() -> None:
    values = torch.randn(400)
    low, high = bootstrap_interval(values)
    error = float(values.std() / 400**0.5)
    assert low < values.mean() < high
    assert (high - low) == pytest.approx(2 * 1.96 * error, rel=0.1)
    narrow = bootstrap_interval(values, level=0.5)
    assert low < narrow[0] < narrow[1] < high


def test_bootstrap_interval_is_deterministic_and_draws_nothing_global() -> None:
    values = torch.rand(30)
    state = torch.get_rng_state()
    assert bootstrap_interval(values) == bootstrap_interval(values.clone())
    assert torch.equal(torch.get_rng_state(), state)


def test_bootstrap_interval_of_constants_is_a_point() -> None:
    assert bootstrap_interval(torch.ones(5)) == (1.0, 1.0)
    assert bootstrap_interval(torch.tensor([0.25])) == (0.25, 0.25)


def result(classes: list[int | None], greedy: int | None = None, level: str = "", truncated: int = 0) -> ProblemResult:
    """A problem whose answers are in the given classes; class 0 is the correct one."""
    n = len(classes)
    answers = tuple(None if c is None else str(c) for c in classes)
    correct = tuple(int(c == 0) for c in classes)
    cut = tuple(i < truncated for i in range(n))
    rewards = tuple(map(float, correct))
    return ProblemResult("", "?", "0", level, "", ("",) * n, answers, correct, rewards, cut, tuple(classes), None, None, greedy)


def test_metrics() -> None:
    metrics = evaluation_metrics([result([0, 1, 1, None], 0, truncated=1), result([0, 0, 0, 0], 1)])
    intervals = {key: metrics.pop(key) for key in list(metrics) if key.endswith(("_low", "_high"))}
    assert metrics == pytest.approx(
        {
            "avg_at_4": 0.625,
            "pass_at_1": 0.625,
            "pass_at_2": 0.75,
            "pass_at_4": 1.0,
            "maj_at_4": 0.5,
            "greedy": 0.5,
            "answered": 7 / 8,
            "truncated": 1 / 8,
        }
    )
    assert set(intervals) == {f"{m}_{end}" for m in ("avg_at_4", "pass_at_4", "maj_at_4", "greedy") for end in ("low", "high")}
    assert (intervals["avg_at_4_low"], intervals["avg_at_4_high"]) == (0.25, 1.0)
    assert (intervals["pass_at_4_low"], intervals["pass_at_4_high"]) == (1.0, 1.0)
    assert not any("@" in key for key in metrics), "MLflow refuses it"


@pytest.mark.parametrize(("k", "passes"), [(1, {1}), (2, {1, 2}), (3, {1, 2, 3}), (8, {1, 2, 4, 8})])
def test_pass_is_reported_at_powers_of_two_and_at_k(k: int, passes: set[int]) -> None:
    metrics = evaluation_metrics([result([0] * k)])
    assert {key for key in metrics if re.fullmatch(r"pass_at_\d+", key)} == {f"pass_at_{j}" for j in passes}
    assert "greedy" not in metrics
    assert {f"avg_at_{k}", f"maj_at_{k}", f"pass_at_{k}_low"} <= set(metrics)


def test_metrics_by_level_are_those_of_its_problems_alone() -> None:
    levels = ["Level 5", "Level 10", "Level 5", "very hard!", "", "Level 5"]
    results = [result([random.Random(i + j).randrange(2) for j in range(4)], level=level) for i, level in enumerate(levels)]
    metrics = evaluation_metrics(results)
    names = {key.split("/")[0] for key in metrics if "/" in key}
    assert names == {"level_5", "level_10", "level_very_hard", "level_none"}
    for name, level in (("level_5", "Level 5"), ("level_none", "")):
        own = evaluation_metrics([dataclasses.replace(r, level="") for r in results if r.level == level])
        assert metrics[f"{name}/problems"] == levels.count(level)
        for key in ("avg_at_4", "avg_at_4_low", "avg_at_4_high"):
            assert metrics[f"{name}/{key}"] == pytest.approx(own[key])
    valid = re.compile(r"[/\w.\- :]+")  # what MLflow says it takes
    assert all(valid.fullmatch(key) for key in metrics)


def test_levels_that_differ_in_signs_only_stay_apart() -> None:
    assert level_groups(["a+", "a-", "a+"]) == {"a": [0, 2], "a_2": [1]}
    assert level_groups(["", ""]) == {}
    assert list(level_groups(["10", "9", "b"])) == ["9", "10", "b"]


@pytest.mark.parametrize("results", [[], [result([0]), result([0, 1])]], ids=["none", "uneven"])
def test_metrics_need_problems_with_as_many_samples_each(results: list[ProblemResult]) -> None:
    with pytest.raises(ValueError, match="the same number of samples"):
        evaluation_metrics(results)


@pytest.mark.parametrize("seed", range(30))
def test_majority_vote_is_the_mean_over_all_ways_to_break_ties(seed: int) -> None:
    """Brute force: of the most frequent, the one that comes first in some order of preference wins; all orders count alike."""
    rng = random.Random(seed)
    classes = [rng.choice([0, 1, 2, None]) for _ in range(rng.randint(1, 6))]
    votes = [c for c in classes if c is not None]
    orders = list(itertools.permutations(set(votes))) if votes else []
    wins = sum(max(order, key=votes.count) == 0 for order in orders)  # max keeps the first of equals
    assert majority_vote(classes) == pytest.approx(wins / max(1, len(orders)))


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


def test_answers_are_compared_by_the_accuracy_terms_verifier_or_by_text() -> None:
    accuracy = Accuracy()
    assert answers_match(accuracy)(["1,000", "2"], ["1000", "3"]) == [True, False]
    assert answers_match(VowelAccuracy())(["1,000", "2"], ["1000", "2"]) == [False, True]


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    results = [result([0, None, 1], 1, "Level \u2028 5"), result([None] * 3)]
    file = ResultsFile(tmp_path / "deep" / "x.jsonl")
    assert file.read() == []
    file.append(results[:1])
    file.append(results[1:])
    assert file.read() == results
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-5])  # a kill in the middle of a line
    assert file.read() == results[:1]
    file.append(results[1:])
    assert file.path.read_bytes() == whole
    file.path.write_text('{"id": 1}\n')
    with pytest.raises(ValueError, match=r"x\.jsonl:1 holds no result"):
        file.read()


class VowelAccuracy:
    """Half of all texts are right; a problem's gold answer matters, so that rows cannot be mixed up unseen."""

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float]:
        return [float((sum(map(ord, c.text)) + int(p.answer)) % 2) for p, c in zip(problems, completions, strict=True)]


PROBLEMS = [MathProblem(f"Ann has {i} pens.", str(i), level=str(i % 2)) for i in range(5)]


def run_evaluation(seed: int = 0, step: int = 0, start: int = 0, **changes: Any) -> list[EvaluatedBatch]:
    policy = tiny_policy()
    config = EvaluationConfig(**{"samples": 4, "seed": seed, **changes})
    stage = make_stage(policy, VowelAccuracy())
    return list(evaluate(policy.model, stage, PROBLEMS, SamplingConfig(max_new_tokens=8), config, step, start))


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


def test_the_completions_table_has_a_row_for_every_completion() -> None:
    (batch,) = run_evaluation()
    table = completions_table(batch.results, [[0.1, 0.2, 0.3, 0.4]] * 5)
    assert list(table)[:6] == ["prompt", "completion", "answer", "gold", "reward", "advantage"]
    assert table["sample"] == [0, 1, 2, 3, "greedy"] * 5
    assert table["advantage"] == [0.1, 0.2, 0.3, 0.4, None] * 5
    sampled = [i for i, s in enumerate(table["sample"]) if s != "greedy"]
    assert [table["completion"][i] for i in sampled] == list(batch.rollouts.completions)
    assert table["correct"] == [c for r in batch.results for c in (*r.correct, r.greedy_correct)]
    assert table["level"] == [p.level for p in PROBLEMS for _ in range(5)]
    assert set(completions_table(batch.results)["advantage"]) == {None}


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


def test_the_table_shows_accuracies_only() -> None:
    metrics = evaluation_metrics([result([0, 1], 1, "1"), result([0, 0], 1, "2")])
    assert accuracy_names(metrics) == ["avg_at_2", "pass_at_2", "maj_at_2", "greedy"]
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(before_after_table({"x": (metrics, metrics)}))
    text = console.export_text()
    assert text.count("+0.0 points") == 4
    assert "75.0 % [50.0, 100.0]" in text


@pytest.mark.parametrize(("key", "value"), [("every_n_steps", -1), ("problems", 0), ("samples", 0), ("batch_problems", 0)])
def test_bad_settings_name_their_key(key: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"evaluation\.{key} must be .*{value}"):
        EvaluationConfig(**{key: value})
