"""What begins in the course of a run: a KL term to the policy of then, and accuracy times confidence."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from support.fixtures import fit, make_module, tiny_policy, weights
from support.toy import rollouts_of
from torch import Tensor

from oar_lightning.credit.gates import DirectGate
from oar_lightning.credit.scorers import Entropy
from oar_lightning.objective.advantage import AdvantageConfig, answer_confidence, group_advantages
from oar_lightning.objective.entropy import AdaptiveEntropy
from oar_lightning.objective.loss import LossConfig
from oar_lightning.policy.batching import even_chunks
from oar_lightning.training.callbacks import GracefulStop, LastCheckpoint, RandomState, RunIdentity
from oar_lightning.training.collector import ExperienceCollector
from oar_lightning.training.forward import completion_logprobs
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.precision import update_precision
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.types import MathProblem

PLAN = UpdatePlan(problems=2, group_size=4, minibatches=2)
PROBLEMS = (MathProblem("1 + 1 =", "2"), MathProblem("2 + 1 =", "3"))


def two_stages(start: float | None = 0.5, kl: float = 0.1, **settings: Any) -> PolicyOptimization:
    """With `start` both parts of the second stage begin at that fraction of the run; None: there are none."""
    loss = LossConfig() if start is None else LossConfig(kl_coef=kl, kl_from=start)
    module = make_module(tiny_policy(), Entropy(), loss=loss, update=PLAN, gate=DirectGate(region="reasoning"), **settings)
    method = dataclasses.replace(module.method, advantage=AdvantageConfig(confidence_from=start))
    module.collector.method = method
    return module


def without_times(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if not name.startswith("time/")}


class Steps(L.Callback):
    """Keeps the weights after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        if trainer.global_step == self.step:
            self.weights = weights(module)


def test_the_second_stage_begins_in_the_course_of_a_run_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Four steps, two batches of rollouts, of which the second is of the second stage; resumed within it."""

    def run(name: str, start: float | None, **resumed: str) -> tuple[dict[int, dict[str, float]], PolicyOptimization]:
        module = two_stages(start, entropy=AdaptiveEntropy(1.5, 0.05, coef_start=0.01, steps="explore"))
        saving = [RandomState(), RunIdentity(lambda: "run"), GracefulStop(), LastCheckpoint(tmp_path / name, 3)]
        return fit(module, 4, [first_half, *saving], **resumed).rows, module

    first_half = Steps(2)
    plain, _ = run("plain", None)
    half = first_half.weights
    rows, module = run("staged", 0.5)
    for step in (1, 2):
        assert without_times(rows[step]) == without_times(plain[step]), "before it a run is the plain one"
    assert not {"kl", "confidence"} & {*plain[4], *rows[2]}
    assert rows[3]["kl"] == pytest.approx(0.0, abs=1e-7), "the reference is the policy of now"
    assert rows[4]["kl"] > 1e-7
    assert "confidence" in rows[3]
    assert rows[4]["loss"] != plain[4]["loss"]
    reference = module.collector.later_reference.weights
    assert all(torch.equal(reference[name], half[name]) for name in half)

    resumed, same = run("resumed", 0.5, ckpt_path=str(tmp_path / "staged" / "previous.ckpt"))
    assert list(resumed) == [4]
    assert without_times(resumed[4]) == without_times(rows[4])
    assert all(torch.equal(a, b) for a, b in zip(weights(module).values(), weights(same).values(), strict=True))
    assert all(torch.equal(same.collector.later_reference.weights[name], value) for name, value in reference.items())
    assert 0 < rows[3]["credit/explore_frac"] < 1


def test_the_later_reference_is_read_with_its_own_weights_beside_an_update_in_bfloat16() -> None:
    """Autocast keeps casts by their parameters, which the reference has in common with the policy."""
    module = two_stages()
    collector = module.collector
    collector.method = dataclasses.replace(module.method, update=dataclasses.replace(PLAN, dtype="bfloat16"))
    collector.collect(PROBLEMS, 2, 0.5)
    rng = torch.Generator().manual_seed(0)
    for name, parameter in collector.model.named_parameters():
        if parameter.ndim == 2 and "embed" not in name:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=rng)
    rollouts = collector.collect(PROBLEMS, 3, 0.7).experience.rollouts
    with collector.later_reference.inside(collector.model), update_precision(collector.method.update, torch.device("cpu")):
        expected = collector.detached_logprobs(collector.model, rollouts)
    assert rollouts.ref_logprobs is not None
    assert rollouts.old_logprobs is not None
    assert torch.allclose(rollouts.ref_logprobs, expected, atol=1e-3)
    assert float((rollouts.old_logprobs - expected).abs().max()) > 0.05


def test_a_longer_run_returns_to_the_first_stage() -> None:
    module = two_stages()
    assert module.collector.collect(PROBLEMS, 3, 0.7).experience.rollouts.ref_logprobs is not None
    assert module.collector.collect(PROBLEMS, 4, 0.3).experience.rollouts.ref_logprobs is None
    assert not module.collector.later_reference.weights


def test_accuracy_counts_times_the_answers_confidence() -> None:
    module = two_stages()
    early, late = (module.collector.collect(PROBLEMS, 0, progress).experience.rollouts for progress in (0.0, 0.9))
    assert torch.equal(early.token_ids, late.token_ids)
    assert torch.equal(early.reward_terms, late.reward_terms), "rewards and their metrics stay"
    assert late.old_logprobs is not None
    confidence = torch.stack(
        [row[mask].double().mean().exp() for row, mask in zip(late.old_logprobs, late.answer_mask, strict=True)]
    )
    assert float(confidence.max() / confidence.min()) > 1.1
    expected = group_advantages(late.reward_terms.double() * confidence[:, None], torch.ones(1).double(), 4)
    assert torch.allclose(late.advantages.double(), expected, atol=1e-4)
    assert not torch.allclose(early.advantages, late.advantages, atol=1e-2)
    begun = module.collector.collect(PROBLEMS, 0, 0.5).experience.rollouts
    assert torch.equal(begun.advantages, late.advantages), "from its fraction of the run on"


def test_a_problems_pass_rate_is_of_the_completions_that_were_judged() -> None:
    collector = two_stages(None).collector
    none = float("nan")
    accuracy = torch.tensor([1.0, none, 0.0, 1.0, none, none, none, none])[:, None]
    sequences = [{"before": [1], "answer": [2]}] * 8
    found = collector.pass_rates(rollouts_of(sequences, reward_terms=accuracy, group_size=4))
    assert found == pytest.approx([2 / 3, none], nan_ok=True)


def test_log_probabilities_have_their_own_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """No phase but theirs has them, and all phases together are the whole."""
    slow = ExperienceCollector.detached_logprobs

    def slower(*arguments: Any) -> Tensor:
        time.sleep(1)
        return slow(*arguments)

    module = two_stages(None)
    module.collector.collect(PROBLEMS, 0)
    monkeypatch.setattr(ExperienceCollector, "detached_logprobs", slower)
    started = time.perf_counter()
    seconds = module.collector.collect(PROBLEMS, 0).seconds
    assert 1 <= seconds["logprobs"] < sum(seconds.values()) <= time.perf_counter() - started


@pytest.mark.parametrize("tokens", [None, 90])
def test_their_passes_are_divided_as_the_updates_are(tokens: int | None) -> None:
    """By length, so that one long row makes no other pass large. In one pass they are the same."""
    plan = UpdatePlan(problems=2, group_size=4, microbatches=4, token_budget=tokens)
    module = make_module(tiny_policy(), Entropy(), update=plan, gate=DirectGate())
    rollouts = module.collector.collect(PROBLEMS, 0).experience.rollouts
    parts = [rows.tolist() for rows, _ in module.collector._in_parts(rollouts, lambda part: part.rewards)]
    assert sorted(row for part in parts for row in part) == list(range(8))
    assert parts == even_chunks(rollouts.attention_mask.sum(1).tolist(), 4, tokens)
    found = module.collector.detached_logprobs(module.model, rollouts)
    expected = completion_logprobs(module.model, rollouts, module.method, None)[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_confidence_of_an_answer_by_hand() -> None:
    logprobs = torch.tensor([[0.5, 0.25, 1.0], [0.1, 0.1, 0.1]], dtype=torch.float64).log()
    answer = torch.tensor([[True, True, False], [False, False, False]])
    assert answer_confidence(logprobs, answer).tolist() == pytest.approx([0.125**0.5, 1.0], rel=1e-12)
