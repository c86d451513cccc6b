"""Sampling that is out of memory at chosen passes, held against sampling that is not: the same completions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from support.fixtures import TASK, tiny_policy
from support.out_of_memory import lowered, out

from oar_lightning.data.chain.task import ChainProblems
from oar_lightning.policy.decoder import GrowingTexts
from oar_lightning.rollout import HFEngine, SamplingConfig, cached


def sample(engine: Any, model: Any, token_budget: Any, max_batch: int | None = None) -> tuple[Any, SamplingConfig]:
    config = SamplingConfig(max_new_tokens=12, token_budget=token_budget, max_batch=max_batch)
    prompts = [ChainProblems(TASK)[i].question for i in range(4)]
    return engine(model, prompts, 3, config, [1, 2, 3, 4]), config


def decoded(policy: Any, generation: Any) -> list[list[int]]:
    return [ids[mask].tolist() for ids, mask in zip(generation.token_ids, generation.response_mask, strict=True)]


@pytest.mark.parametrize(("start", "max_batch"), [("auto", None), ("auto", 5)])
def test_completions_are_those_of_an_undisturbed_run(
    start: Any, max_batch: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The memory ends in the middle of a completion, when the cache has grown."""
    policy = tiny_policy()
    engine = cached.CachedEngine(policy.tokenizer)
    expected, _ = sample(engine, policy.model, None)
    read = GrowingTexts.__call__

    def cramped(texts: Any, ids: Any) -> Any:
        if (tokens := len(ids) * (texts.width + ids.shape[1])) > 90:
            raise out(tokens)
        return read(texts, ids)

    monkeypatch.setattr(GrowingTexts, "__call__", cramped)
    state = torch.get_rng_state()
    actual, config = sample(engine, policy.model, start, max_batch)
    assert decoded(policy, actual) == decoded(policy, expected)
    assert len({tuple(ids) for ids in decoded(policy, actual)}) > 6
    torch.testing.assert_close(actual.prediction_states, expected.prediction_states, rtol=0, atol=1e-5)
    assert torch.equal(torch.get_rng_state(), state)
    assert lowered(caplog, "rollout.token_budget")
    caplog.clear()
    engine(policy.model, ["one", "two three"], 6, dataclasses.replace(config, temperature=0.5), [5, 6])
    assert not caplog.records  # a copy of the settings shares the budget, as evaluations do


def test_what_generate_draws_does_not_depend_on_an_attempt_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy()
    engine, generate = HFEngine(policy.tokenizer), HFEngine._generate

    def cramped(self: Any, model: Any, prompts: Any, *rest: Any) -> Any:
        torch.rand(7)
        if len(prompts) > 4:
            raise out(len(prompts))
        return generate(self, model, prompts, *rest)

    monkeypatch.setattr(HFEngine, "_generate", cramped)
    actual, config = sample(engine, policy.model, "auto")
    expected, _ = sample(engine, policy.model, config.budget.tokens)
    assert decoded(policy, actual) == decoded(policy, expected)
    assert len({tuple(ids) for ids in decoded(policy, actual)}) == 12
