"""pass@k against brute force, bootstrap intervals against simulation, and evaluation as a side-effect-free measurement."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from fixtures import make_stage, tiny_policy

from oar_lightning.evaluation import Evaluation, EvaluationConfig, bootstrap_interval, evaluate, pass_at_k
from oar_lightning.reward import Completion
from oar_lightning.rollout import SamplingConfig
from oar_lightning.types import MathProblem, Rollouts


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


def empty_rollouts() -> Rollouts:
    nothing = torch.zeros(0, 0, dtype=torch.bool)
    return Rollouts(nothing.long(), nothing, nothing, nothing, nothing, torch.zeros(0, 1), torch.zeros(0), 1)


def test_metrics() -> None:
    correct = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    metrics = Evaluation(correct, torch.tensor([0.0, 1.0]), empty_rollouts()).metrics()
    low, high = metrics.pop("avg_at_4_low"), metrics.pop("avg_at_4_high")
    assert metrics == pytest.approx({"avg_at_4": 0.625, "pass_at_2": 0.75, "pass_at_4": 1.0, "greedy": 0.5})
    assert (low, high) == (0.25, 1.0)
    assert not any("@" in key for key in metrics), "MLflow refuses it"
    without = Evaluation(correct[:, :3], None, empty_rollouts()).metrics()
    assert set(without) == {"avg_at_3", "avg_at_3_low", "avg_at_3_high", "pass_at_2"}


class VowelAccuracy:
    """Half of all texts are right; a problem's gold answer matters, so that rows cannot be mixed up unseen."""

    def __call__(self, problems: Sequence[MathProblem], completions: Sequence[Completion]) -> list[float]:
        return [float((sum(map(ord, c.text)) + int(p.answer)) % 2) for p, c in zip(problems, completions, strict=True)]


PROBLEMS = [MathProblem(f"Ann has {i} pens.", str(i)) for i in range(3)]


def run_evaluation(seed: int = 0, step: int = 0, greedy: bool = True) -> Evaluation:
    policy = tiny_policy()
    config = EvaluationConfig(samples=4, seed=seed, greedy=greedy)
    return evaluate(policy.model, make_stage(policy, VowelAccuracy()), PROBLEMS, SamplingConfig(max_new_tokens=8), config, step)


def test_evaluation_is_paired_and_leaves_the_training_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = run_evaluation()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other = run_evaluation(step=7), run_evaluation(seed=1)
    assert again.rollouts.completions == first.rollouts.completions
    assert other.rollouts.completions != first.rollouts.completions
    assert torch.equal(again.correct, first.correct)


def test_evaluation_counts_by_problem() -> None:
    result = run_evaluation()
    assert result.correct.shape == (3, 4)
    texts = result.rollouts.completions
    expected = [[(sum(map(ord, texts[4 * p + i])) + p) % 2 for i in range(4)] for p in range(3)]
    assert result.correct.tolist() == expected
    assert result.rollouts.problems == tuple(p for p in PROBLEMS for _ in range(4))
    assert result.greedy is not None
    assert result.greedy.shape == (3,)
    assert run_evaluation(greedy=False).greedy is None


@pytest.mark.parametrize(("key", "value"), [("every_n_steps", -1), ("problems", 0), ("samples", 0)])
def test_bad_settings_name_their_key(key: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"evaluation\.{key} must be .*{value}"):
        EvaluationConfig(**{key: value})
