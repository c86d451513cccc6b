"""Updates that are out of memory at chosen passes, held against those that are not: the same gradients and weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from support.fixtures import fit, make_module, tiny_policy, weights
from support.out_of_memory import lowered, out

from oar_lightning.credit.scorers import OarG, OarP, Scorer, Uniform
from oar_lightning.planning.empty import MemoryCounter
from oar_lightning.policy.out_of_memory import OutOfMemory
from oar_lightning.rollout import SamplingConfig
from oar_lightning.training.callbacks import LastCheckpoint, RandomState
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.schedule import Schedule
from oar_lightning.training.slots import UpdatePlan

Refuse = Callable[[int], bool]
"""Padded tokens of a pass -> whether it does not fit."""


def refuse_updates(model: Any, refuse: Refuse, where: str) -> None:
    """Let passes with gradient run out of memory: on the way `forward`, or on the way back in the middle of the layers, where
    some parameters have their gradients already."""
    decoder = model.get_decoder()

    def check(tokens: int) -> None:
        if refuse(tokens):
            raise out(tokens)

    def forward(module: Any, args: Any, kwargs: Any) -> None:
        if decoder.training and where == "forward":
            check(kwargs["input_ids"].numel())

    def backward(module: Any, args: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        if decoder.training and where == "backward":
            states.register_hook(lambda gradient: check(gradient.shape[:2].numel()))

    decoder.register_forward_pre_hook(forward, with_kwargs=True)
    decoder.layers[0].register_forward_hook(backward)


def larger_than(room: int) -> Refuse:
    return lambda tokens: tokens > room


class Nth:
    """Refuses one pass, the n-th."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, tokens: int) -> bool:
        self.left -= 1
        return self.left == -1


class Gradients(L.Callback):
    """Keeps the gradient of each optimizer step, before clipping."""

    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []

    def on_before_optimizer_step(self, trainer: L.Trainer, module: Any, optimizer: Any) -> None:
        self.steps.append({n: p.grad.clone() for n, p in module.model.named_parameters() if p.grad is not None})


def job(budget: Any, sampling_budget: Any = None, scorer: Scorer | None = None, **update: Any) -> PolicyOptimization:
    module = make_module(
        tiny_policy(),
        scorer=scorer or OarG(),
        update=UpdatePlan(problems=2, group_size=4, token_budget=budget, **update),
    )
    sampling = SamplingConfig(max_new_tokens=12, token_budget=sampling_budget)
    module.collector.method = dataclasses.replace(module.method, sampling=sampling)
    module.schedule = Schedule(warmup_steps=1)
    return module


OWN = ("time/", "update/", "memory/", "credit/forward_equivalents")


def check_same(one: tuple[PolicyOptimization, Any, Gradients], two: tuple[PolicyOptimization, Any, Gradients]) -> None:
    """Gradients of the first step within 1e-5 of the largest (passes of other sizes round otherwise), weights and metrics after
    several within rounding."""
    expected, actual = one[2].steps[0], two[2].steps[0]
    scale = max(float(g.abs().max()) for g in expected.values())
    assert scale > 1e-3
    assert expected.keys() == actual.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=0, atol=1e-5 * scale)
    torch.testing.assert_close(weights(two[0]), weights(one[0]), rtol=1e-4, atol=1e-5)
    assert one[1].rows.keys() == two[1].rows.keys()
    for step, row in one[1].rows.items():
        rows = [{k: v for k, v in r.items() if not k.startswith(OWN)} for r in (row, two[1].rows[step])]
        assert rows[0].keys() == rows[1].keys()
        for key, value in rows[0].items():
            # rounding turns ranks about that are all but equal
            within = {"abs": 1e-3} if key.startswith("credit/corr_") else {"rel": 1e-3, "abs": 1e-5}
            assert rows[1][key] == pytest.approx(value, **within), (step, key)


def run(module: PolicyOptimization, steps: int = 2, callbacks: list[L.Callback] | None = None, **more: Any) -> Any:
    gradients = Gradients()
    return module, fit(module, steps, [gradients, *(callbacks or [])], **more), gradients


@pytest.fixture(scope="module")
def undisturbed() -> Any:
    module = job(None)
    refuse_updates(module.model, lambda tokens: False, "forward")  # a model with hooks is scored by its own modules
    return run(module)


@pytest.mark.parametrize(
    ("where", "microbatches"),
    [
        ("forward", 1),
        ("backward", 3),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("forward", 3), ("backward", 1))),
    ],
)
def test_an_update_that_does_not_fit_is_made_in_parts(
    where: str, microbatches: int, undisturbed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    module = job("auto", microbatches=microbatches)
    refuse_updates(module.model, larger_than(70), where)
    found = run(module)
    check_same(undisturbed, found)
    messages = lowered(caplog, "update.token_budget")
    tokens = [int(message.split(" to ")[-1].split()[0]) for message in messages]
    assert len(messages) == (2 if microbatches == 1 else 1)
    assert tokens == sorted(tokens, reverse=True)
    last = found[1].rows[2]
    assert last["memory/token_budget_update"] == tokens[-1] == module.method.update.budget.tokens
    assert last["update/microbatch_tokens"] <= max(tokens[-1], 70)
    assert last["update/passes"] > undisturbed[1].rows[2]["update/passes"] == 1


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("n", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)])
def test_any_pass_of_a_step_may_fail(where: str, n: int, undisturbed: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The gradients of the passes before it stay, those of the failed one count once."""
    module = job("auto", microbatches=3)
    refuse_updates(module.model, Nth(n), where)
    check_same(undisturbed, run(module))
    assert len(lowered(caplog, "update.token_budget")) == 1


@pytest.mark.parametrize("how", ["gradient checkpointing", "bf16-mixed"])
def test_parts_are_those_of_the_whole_pass_however_it_is_made(how: str) -> None:
    results = []
    for budget, room in ((None, 10**6), ("auto", 70)):
        module = job(budget, scorer=Uniform())
        if how == "gradient checkpointing":
            module.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        refuse_updates(module.model, larger_than(room), "backward")
        results.append(run(module, precision="bf16-mixed" if how == "bf16-mixed" else "32-true"))
    gradients = [found[2].steps[0] for found in results]
    scale = max(float(g.abs().max()) for g in gradients[0].values())
    for name, gradient in gradients[0].items():  # in bfloat16 other sums round by 2^-9
        torch.testing.assert_close(gradients[1][name], gradient, rtol=0, atol=(3e-6 if how != "bf16-mixed" else 8e-3) * scale)
    assert results[1][1].rows[1]["update/passes"] > 1


def test_without_a_failure_a_mixed_precision_is_the_same_bit_for_bit() -> None:
    """The backward pass runs outside of autocast, as Lightning's."""
    found = [run(job(budget, scorer=Uniform(), microbatches=2), precision="bf16-mixed") for budget in (None, "auto")]
    torch.testing.assert_close(weights(found[1][0]), weights(found[0][0]), rtol=0, atol=0)


def test_with_auto_and_enough_memory_nothing_changes(undisturbed: Any, caplog: pytest.LogCaptureFixture) -> None:
    module = job("auto", "auto", OarG(token_budget="auto"))
    refuse_updates(module.model, lambda tokens: False, "forward")
    found = run(module)
    for expected, actual in zip(undisturbed[2].steps, found[2].steps, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    torch.testing.assert_close(weights(found[0]), weights(undisturbed[0]), rtol=0, atol=0)
    assert not any(record.name.startswith("oar_lightning") for record in caplog.records)
    assert "memory/token_budget_update" not in found[1].rows[2]  # no bound is known yet
    assert found[1].rows[2]["memory/token_budget_scorer"] == 2048


def test_old_and_reference_logprobs_are_computed_in_parts_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With several steps a batch, in half precision or without room for states, their pass is one of its own."""
    monkeypatch.setattr("oar_lightning.rollout.cached.keeps_states", lambda *args: False)
    monkeypatch.setattr("oar_lightning.training.collector.states_fit", lambda *args: False)
    expected = run(job(None, scorer=Uniform(), inner_epochs=2))
    module = job("auto", scorer=Uniform(), inner_epochs=2)

    def forward(decoder: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", torch.empty(0))  # the check of the plain decoder passes embeddings
        if not decoder.training and "past_key_values" not in kwargs and ids.numel() > 70:
            raise out(ids.numel())

    module.model.get_decoder().register_forward_pre_hook(forward, with_kwargs=True)
    check_same(expected, run(module))
    assert lowered(caplog, "update.token_budget")


def test_a_single_row_that_does_not_fit_ends_the_run() -> None:
    module = job("auto")
    refuse_updates(module.model, larger_than(15), "backward")
    with pytest.raises(OutOfMemory, match=r"update.token_budget=auto: a single row of \d+ tokens .*; lower rollout"):
        run(module)


def test_a_number_does_not_give_way() -> None:
    module = job(10_000)
    refuse_updates(module.model, larger_than(70), "forward")
    with pytest.raises(torch.OutOfMemoryError):
        run(module)


@pytest.mark.parametrize("stop", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_run_starts_with_the_lowered_budget(stop: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And equals the run that was not interrupted, bit for bit."""

    def cramped() -> PolicyOptimization:
        module = job("auto", "auto", inner_epochs=2)
        refuse_updates(module.model, larger_than(70), "backward")
        return module

    callbacks = lambda name: [RandomState(), LastCheckpoint(tmp_path / name, 0)]  # noqa: E731
    whole = run(cramped(), 4, callbacks("whole"))
    run(cramped(), stop, callbacks("part"))
    caplog.clear()
    again = run(cramped(), 4, callbacks("part"), ckpt_path=str(tmp_path / "part" / "last.ckpt"))
    assert not lowered(caplog, "update.token_budget")
    assert again[1].rows[4]["memory/token_budget_update"] == whole[1].rows[4]["memory/token_budget_update"] < 70
    torch.testing.assert_close(weights(again[0]), weights(whole[0]), rtol=0, atol=0)


class Memory(MemoryCounter):
    """An allocator with so many bytes: what is alive counts, whoever holds it."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size
        self.failures = 0

    def count(self, storage: torch.UntypedStorage) -> None:
        super().count(storage)
        if self.live > self.size:
            self.failures += 1
            raise out(storage.nbytes())


def test_training_goes_on_in_half_of_the_memory(caplog: pytest.LogCaptureFixture) -> None:
    """All phases of steps in an allocator of bytes: what a failed pass held is free again, or the next would fail, too."""

    def steps(budget: Any, size: float) -> tuple[Any, Memory]:
        module = make_module(
            tiny_policy(),
            scorer=OarP(token_budget="auto" if budget else 2048),
            update=UpdatePlan(problems=3, group_size=8, token_budget=budget),
        )
        module.collector.method = dataclasses.replace(
            module.method, sampling=SamplingConfig(max_new_tokens=12, token_budget=budget)
        )
        with Memory(size) as memory:
            return run(module), memory

    expected, memory = steps(None, float("inf"))
    actual, half = steps("auto", memory.peak / 2)
    assert half.failures >= 2
    assert half.peak <= memory.peak / 2 + 10**6
    check_same(expected, actual)
    assert lowered(caplog, "update.token_budget")
