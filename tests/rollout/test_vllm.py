"""The vLLM engine over a stand-in (tests/support/fake_vllm.py) and, in slow tests, over the true vLLM on a CPU.

`make vllm` runs the latter. What is about the stand-in's own faults or a GPU has the stand-in alone.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import importlib.util
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import fake_vllm, true_vllm
from support.fake_vllm import copy_of
from support.fixtures import LengthReward, fit, make_module, make_stage, tiny_policy
from support.toy import phi3_longrope, qwen2_golden
from transformers import GenerationConfig

from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.policy.pretrained import LoraSpec, Policy
from oar_lightning.rollout import CachedEngine, Generation, SamplingConfig, VllmConfig, VllmEngine
from oar_lightning.rollout import vllm as engine_file
from oar_lightning.rollout.sampling import join_generations, lay_out
from oar_lightning.rollout.weights import checkpoint_weights
from oar_lightning.training.callbacks import GracefulStop, LastCheckpoint, RandomState, RunIdentity
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.types import MathProblem

PROMPTS = ["Ann has 3 pens.\n", "Ben has 14 nuts. Ben buys 2.\n", "So\n"]
SEEDS = [11, 12, 13]
SAMPLED = SamplingConfig(max_new_tokens=8, temperature=0.7)
GREEDY = SamplingConfig(max_new_tokens=8, temperature=0.0)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[fake_vllm.LLM]:
    monkeypatch.setattr(VllmConfig, "check", lambda self, sampling: None)
    return fake_vllm.install(monkeypatch)


@pytest.fixture(params=["stand-in", pytest.param("true", marks=pytest.mark.slow)])
def vllm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    return true_vllm.install(monkeypatch) if request.param == "true" else request.getfixturevalue("stand_in")


@pytest.fixture
def policy() -> Policy:
    """Every sixth word ends a completion, so that lengths differ; weights far enough from 0 that words differ in likelihood."""
    policy = small_policy()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    policy.model.generation_config.eos_token_id = [policy.tokenizer.eos_token_id, *range(5, len(policy.tokenizer), 6)]
    return policy


def small_policy(seed: int = 0) -> Policy:
    return tiny_policy(seed, head_size=32)  # vLLM computes no smaller heads on a CPU


def engine_for(policy: Policy, **settings: Any) -> VllmEngine:
    """In the policy's precision and without compilation, whichever vLLM it is."""
    return VllmEngine(policy.tokenizer, VllmConfig(**{"dtype": "float32", "enforce_eager": True} | settings))


def rows(generation: Generation) -> list[list[int]]:
    return [ids[mask].tolist() for ids, mask in zip(generation.token_ids, generation.response_mask, strict=True)]


def same_weights(policy: Policy, llm: Any) -> bool:
    held = llm.held()
    return all(torch.equal(held[name], p) for name, p in policy.model.named_parameters())


def step(policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    ids = torch.arange(2, 30)[None]
    policy.model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_greedy_completions_are_laid_out_as_by_the_cached_engine(policy: Policy, vllm: Any) -> None:
    longest = rows(CachedEngine(policy.tokenizer)(policy.model, PROMPTS, 1, GREEDY, SEEDS))
    policy.model.generation_config.eos_token_id = [longest[1][3]]
    generation = engine_for(policy)(policy.model, PROMPTS, 2, GREEDY, SEEDS)
    expected = CachedEngine(policy.tokenizer)(policy.model, PROMPTS, 2, GREEDY, SEEDS)
    assert 0 < expected.truncated.sum() < 6
    for name in ("token_ids", "attention_mask", "response_mask", "truncated"):
        actual, wanted = getattr(generation, name), getattr(expected, name)
        assert actual.dtype == wanted.dtype
        assert torch.equal(actual, wanted), name
    assert generation.sampler_logprobs is None


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_logprobs_are_the_policys_at_the_sampling_temperature(policy: Policy, temperature: float, vllm: Any) -> None:
    config = SamplingConfig(max_new_tokens=8, temperature=temperature)
    generation = engine_for(policy)(policy.model, PROMPTS, 6, config, SEEDS)
    expected, _ = token_logprobs(
        policy.model, generation.token_ids, generation.attention_mask, generation.response_mask, temperature
    )
    assert generation.sampler_logprobs is not None
    torch.testing.assert_close(generation.sampler_logprobs, expected, rtol=0, atol=1e-5)
    assert generation.sampler_logprobs[~generation.response_mask].eq(0).all()
    assert generation.sampler_logprobs[generation.response_mask].lt(0).all()


def test_sampled_completions_keep_their_place_and_their_end(policy: Policy, vllm: Any) -> None:
    generation = engine_for(policy)(policy.model, PROMPTS, 6, SAMPLED, SEEDS)
    outputs = [completion for request in vllm.made[0].outputs for completion in request.outputs]
    assert rows(generation) == [list(completion.token_ids) for completion in outputs]
    assert generation.truncated.tolist() == [completion.finish_reason == "length" for completion in outputs]
    assert 0 < generation.truncated.sum() < 18
    eos = policy.model.generation_config.eos_token_id
    for ids, truncated in zip(rows(generation), generation.truncated.tolist(), strict=True):
        ended = [i for i, token in enumerate(ids) if token in eos]
        assert ended == ([] if truncated else [len(ids) - 1])
        assert len(ids) == 8 or not truncated
    given = generation.attention_mask & ~generation.response_mask
    prompts = [ids[mask].tolist() for ids, mask in zip(generation.token_ids, given, strict=True)]
    assert prompts == [ids for ids in policy.tokenizer(PROMPTS).input_ids for _ in range(6)]
    assert len(set(map(tuple, rows(generation)))) > 12


def test_a_nucleus_raises_the_samplers_probabilities_to_what_it_drew_from(policy: Policy, vllm: Any) -> None:
    config = SamplingConfig(max_new_tokens=8, top_p=0.6)
    generation = engine_for(policy)(policy.model, PROMPTS, 6, config, SEEDS)
    own, _ = token_logprobs(policy.model, generation.token_ids, generation.attention_mask, generation.response_mask)
    assert generation.sampler_logprobs is not None
    inside = (own - generation.sampler_logprobs)[generation.response_mask].exp()
    assert (inside > 0.6 - 1e-5).all()
    assert (inside < 1).any()


def test_draws_belong_to_the_prompts_seed(policy: Policy, vllm: Any) -> None:
    engine = engine_for(policy)

    def sample(prompts: list[str], seeds: list[int]) -> list[list[int]]:
        return rows(engine(policy.model, prompts, 3, SAMPLED, seeds))

    whole = sample(PROMPTS, SEEDS)
    assert sample(PROMPTS, SEEDS) == whole
    assert sample(PROMPTS[::-1], SEEDS[::-1]) == whole[6:] + whole[3:6] + whole[:3]
    assert sample(PROMPTS[1:2], SEEDS[1:2]) == whole[3:6]
    assert sample(PROMPTS, [11, 99, 13])[3:6] != whole[3:6]
    same_prompt = sample([PROMPTS[0]] * 2, [11, 12])
    assert not {tuple(ids) for ids in same_prompt[:3] if len(ids) > 2} & {tuple(ids) for ids in same_prompt[3:]}
    sample(PROMPTS[:1], [2**63 - 1])  # with seed + 1, seed + 2 beyond 63 bits


def test_only_the_policys_own_ends_end_a_completion(policy: Policy, vllm: Any) -> None:
    """The stored configuration names an end that neither the tokenizer nor the generation settings know."""
    first = rows(CachedEngine(policy.tokenizer)(policy.model, PROMPTS[:1], 1, GREEDY, [1]))[0]
    policy.model.config.eos_token_id = first[0]
    assert first[0] not in policy.model.generation_config.eos_token_id
    assert rows(engine_for(policy)(policy.model, PROMPTS[:1], 1, GREEDY, [1])) == [first]
    assert GenerationConfig.from_model_config(policy.model.config).eos_token_id == first[0]


OPTIMIZERS = {
    "AdamW": functools.partial(torch.optim.AdamW, lr=1e-2),
    "fused": functools.partial(torch.optim.AdamW, lr=1e-2, fused=True),
    "foreach": functools.partial(torch.optim.AdamW, lr=1e-2, foreach=True),
    "SGD": functools.partial(torch.optim.SGD, lr=1e-1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_weights_follow_the_policy_and_are_sent_only_when_they_changed(policy: Policy, vllm: Any, optimizer: Any) -> None:
    """Fused optimizers write without raising the version of a parameter."""
    engine, steps = engine_for(policy), optimizer(policy.model.parameters())
    engine(policy.model, PROMPTS, 2, SAMPLED, SEEDS)
    (llm,) = vllm.made
    assert same_weights(policy, llm)
    engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    assert llm.events == ["apply_model", "reset_prefix_cache", "generate", "generate"]
    step(policy, steps)
    assert not same_weights(policy, llm)
    llm.events.clear()
    generation = engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    assert llm.events == ["apply_model", "reset_prefix_cache", "generate"]
    assert same_weights(policy, llm)
    assert rows(generation) == rows(CachedEngine(policy.tokenizer)(policy.model, PROMPTS, 1, GREEDY, SEEDS))
    sampled = engine(policy.model, PROMPTS, 4, SAMPLED, SEEDS)  # a stale prefix cache would show in the first token
    expected, _ = token_logprobs(policy.model, sampled.token_ids, sampled.attention_mask, sampled.response_mask, 0.7)
    torch.testing.assert_close(sampled.sampler_logprobs, expected, rtol=0, atol=1e-5)
    assert llm.events[3:] == ["generate"]
    assert vllm.made == [llm]


def test_a_loaded_checkpoint_is_a_change(policy: Policy, vllm: Any) -> None:
    engine = engine_for(policy)
    engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    policy.model.load_state_dict(small_policy(1).model.state_dict())
    engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    assert same_weights(policy, vllm.made[0])


def test_steps_are_counted_only_while_the_engine_lives(policy: Policy, stand_in: type[fake_vllm.LLM]) -> None:
    engine = engine_for(policy)
    steps, optimizer = engine._optimizer_steps, torch.optim.SGD(policy.model.parameters(), lr=0.1)
    step(policy, optimizer)
    assert steps == [1]
    del engine
    step(policy, optimizer)
    assert steps == [1]


def lora_policy(policy: Policy, target_modules: str | list[str] = "all-linear") -> Policy:
    model = LoraSpec(r=4, alpha=8, target_modules=target_modules).apply(policy.model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    return Policy(model, policy.tokenizer)


def test_lora_is_merged_on_the_way_and_the_policy_keeps_its_adapters(policy: Policy, vllm: Any) -> None:
    plain = copy_of(policy.model)
    policy = lora_policy(policy)
    before = copy_of(policy.model)
    engine = engine_for(policy)
    generation = engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    assert rows(generation) == rows(CachedEngine(policy.tokenizer)(policy.model, PROMPTS, 1, GREEDY, SEEDS))
    after = policy.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    held = vllm.made[0].held()
    expected = copy.deepcopy(policy.model).merge_and_unload().state_dict()
    for name, tensor in held.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-5)
    assert not torch.equal(held["model.layers.0.mlp.up_proj.weight"], plain["model.layers.0.mlp.up_proj.weight"])
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    step(policy, torch.optim.AdamW(trained, lr=1e-2))
    again = engine(policy.model, PROMPTS, 6, SAMPLED, SEEDS)
    own, _ = token_logprobs(policy.model, again.token_ids, again.attention_mask, again.response_mask, 0.7)
    torch.testing.assert_close(again.sampler_logprobs, own, rtol=0, atol=1e-4)


def test_merged_or_disabled_adapters_are_not_added_again(policy: Policy) -> None:
    policy = lora_policy(policy)
    merged = dict(checkpoint_weights(policy.model))
    with policy.model.disable_adapter():
        without = {name: tensor.clone() for name, tensor in checkpoint_weights(policy.model)}
    policy.model.merge_adapter()
    after = dict(checkpoint_weights(policy.model))
    name = "model.layers.0.mlp.up_proj.weight"
    torch.testing.assert_close(after[name], merged[name])
    assert not torch.allclose(without[name], merged[name])


def test_a_completion_that_the_engine_would_cut_is_refused(policy: Policy, vllm: Any) -> None:
    """vLLM ends it at `max_model_len` for the same reason as at its own limit."""
    engine = VllmEngine(policy.tokenizer, VllmConfig(max_model_len=31))
    config = SamplingConfig(max_new_tokens=30)
    with pytest.raises(ValueError, match=r"beyond the 31 tokens of engine\.max_model_len; set rollout\.max_new_t"):
        engine(policy.model, PROMPTS, 1, config, SEEDS)


@pytest.mark.parametrize("tied", [True, False])
def test_names_are_those_of_a_saved_checkpoint(tmp_path: Path, tied: bool) -> None:
    from safetensors.torch import load_file

    model = qwen2_golden()
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    model.save_pretrained(tmp_path)
    stored = load_file(str(tmp_path / "model.safetensors"))
    sent = dict(checkpoint_weights(model))
    assert sent.keys() == stored.keys()
    assert all(torch.equal(sent[name], stored[name]) for name in stored)
    assert not any(tensor.requires_grad for tensor in sent.values())


def test_a_parameter_that_gets_no_value_is_an_error(policy: Policy, monkeypatch: pytest.MonkeyPatch, vllm: Any) -> None:
    def without_norm(model: Any) -> Any:
        return ((name, tensor) for name, tensor in checkpoint_weights(model) if name != "model.norm.weight")

    monkeypatch.setattr(engine_file, "checkpoint_weights", without_norm)
    with pytest.raises(
        ValueError, match=r"1 parameters of vLLM's Qwen2ForCausalLM .* e\.g\. model\.norm\.weight; use engine=auto"
    ):
        engine_for(policy)(policy.model, PROMPTS, 1, GREEDY, SEEDS)


def test_a_prefix_cache_that_stays_is_an_error(policy: Policy, stand_in: type[fake_vllm.LLM]) -> None:
    engine = engine_for(policy)
    engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    stand_in.made[0].reset_fails = True
    step(policy, torch.optim.SGD(policy.model.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="did not reset its prefix cache"):
        engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)


def test_it_sleeps_between_calls_and_wakes_before_it_gets_weights(policy: Policy, stand_in: type[fake_vllm.LLM]) -> None:
    engine = engine_for(policy, sleep=True)
    engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    step(policy, torch.optim.SGD(policy.model.parameters(), lr=0.1))
    engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    send = ["apply_model", "reset_prefix_cache"]
    assert stand_in.made[0].events == [
        *send,
        "generate",
        "sleep",
        "wake_up",
        *send,
        "generate",
        "sleep",
        "wake_up",
        "generate",
        "sleep",
    ]
    assert same_weights(policy, stand_in.made[0])


def test_settings_reach_vllm(policy: Policy, stand_in: type[fake_vllm.LLM]) -> None:
    config = VllmConfig(gpu_memory_utilization=0.5, max_model_len=64, dtype="bfloat16", enforce_eager=True)
    sampling = SamplingConfig(max_new_tokens=4, temperature=0.9, top_p=0.8, max_batch=5)
    VllmEngine(policy.tokenizer, config)(policy.model, PROMPTS, 3, sampling, SEEDS)
    (llm,) = stand_in.made
    expected = {"gpu_memory_utilization": 0.5, "max_model_len": 64, "dtype": "bfloat16", "enforce_eager": True}
    expected |= {"max_num_seqs": 5, "enable_sleep_mode": False, "logprobs_mode": "processed_logprobs"}
    assert {key: llm.arguments[key] for key in expected} == expected
    for params in llm.params:
        assert (params.n, params.temperature, params.top_p, params.top_k, params.max_tokens) == (3, 0.9, 0.8, 0, 4)
    assert next(llm.model.inner.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize(("own", "passed_on"), [(None, 24), (64, 24), (16, 16)])
def test_a_vllm_is_no_longer_than_longropes_bound(own: int | None, passed_on: int, stand_in: type[fake_vllm.LLM]) -> None:
    """With room for longer texts vLLM takes the angles of those for all."""
    engine = VllmEngine(SimpleNamespace(pad_token_id=0, eos_token_id=1), VllmConfig(max_model_len=own))
    engine(phi3_longrope(24).float(), [[5, 6, 7]], 2, SamplingConfig(max_new_tokens=4), [1])
    (llm,) = stand_in.made
    assert llm.arguments["max_model_len"] == passed_on


def test_neither_random_states_nor_autocast_pass_between_trainer_and_vllm(policy: Policy, vllm: Any) -> None:
    engine = engine_for(policy)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with torch.autocast("cpu", torch.bfloat16):
        engine(policy.model, PROMPTS, 2, SAMPLED, SEEDS)
        engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states


def test_modes_and_gradients_are_left_alone(policy: Policy, vllm: Any) -> None:
    policy.model.train()
    generation = engine_for(policy)(policy.model, PROMPTS, 1, SAMPLED, SEEDS)
    assert policy.model.training
    assert all(p.grad is None and p.requires_grad for p in policy.model.parameters())
    assert not generation.token_ids.is_inference()
    with pytest.raises(ValueError, match="3 prompts and 2 seeds"):
        engine_for(policy)(policy.model, PROMPTS, 1, SAMPLED, SEEDS[:2])


def test_a_completion_that_ended_otherwise_is_an_error(policy: Policy, stand_in: type[fake_vllm.LLM]) -> None:
    engine = engine_for(policy)
    engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    stand_in.made[0].last_reason = "abort"
    with pytest.raises(RuntimeError, match=r"for another reason than its length or an EOS token: abort"):
        engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)


def test_a_logprob_that_is_not_finite_is_an_error(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, stand_in: type[fake_vllm.LLM]
) -> None:
    monkeypatch.setattr(fake_vllm, "Logprob", lambda value, rank: fake_vllm.CompletionOutput)
    monkeypatch.setattr(fake_vllm.CompletionOutput, "logprob", float("nan"), raising=False)
    with pytest.raises(RuntimeError, match="not finite"):
        engine_for(policy)(policy.model, PROMPTS, 1, SAMPLED, SEEDS)


def test_vllm_is_imported_only_where_it_is_used() -> None:
    for path in Path(engine_file.__file__).parent.parent.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None) or ""]
            assert not any(name.split(".")[0] == "vllm" for name in modules), path


# ------------------------------------------------------------------------------------------------------ in the training loop


def make(engine: Any, policy: Policy, update: UpdatePlan, lr: float = 1e-3) -> PolicyOptimization:
    module = make_module(policy, reward=LengthReward(), update=update, lr=lr)
    module.collector.stage = dataclasses.replace(module.collector.stage, engine=engine)
    return module


@pytest.mark.parametrize(
    "update",
    [UpdatePlan(problems=2, group_size=4), UpdatePlan(problems=2, group_size=4, inner_epochs=2, minibatches=2, microbatches=2)],
    ids=["on-policy", "inner-epochs"],
)
def test_training_samples_from_the_current_policy_and_corrects(vllm: Any, update: UpdatePlan) -> None:
    policy = small_policy()
    per_rollout = update.steps_per_rollout
    rows = fit(make(engine_for(policy), policy, update), 3 * per_rollout).rows
    (llm,) = vllm.made
    assert llm.events == ["apply_model", "reset_prefix_cache", "generate"] * 3
    for row in rows.values():
        assert row["sampler/ratio_mean"] == pytest.approx(1, abs=1e-5)
        assert row["sampler/logprob_difference"] == pytest.approx(0, abs=1e-5)
        assert row["sampler/capped_frac"] == 0


def test_a_mismatched_sampler_is_measured(vllm: Any) -> None:
    """vLLM in bfloat16 and the policy in float32 differ."""
    policy = small_policy()
    engine = engine_for(policy, dtype="bfloat16")
    rows = fit(make(engine, policy, UpdatePlan(problems=2, group_size=4)), 2).rows
    assert all(1e-5 < row["sampler/logprob_difference"] < 0.1 for row in rows.values())
    assert all(row["sampler/ratio_mean"] == pytest.approx(1, abs=0.05) for row in rows.values())


def test_other_engines_log_no_mismatch() -> None:
    assert not any(name.startswith("sampler/") for name in fit(make_module(tiny_policy()), 1).rows[1])


def test_a_run_interrupted_between_inner_epochs_goes_on_exactly(tmp_path: Path, vllm: Any) -> None:
    update = UpdatePlan(problems=2, group_size=4, inner_epochs=3)

    def module(seed: int) -> PolicyOptimization:
        policy = small_policy(seed)
        return make(engine_for(policy, dtype="bfloat16"), policy, update, lr=1e-2)

    def callbacks(name: str) -> list[Any]:
        return [RandomState(), RunIdentity(lambda: "run"), GracefulStop(), LastCheckpoint(tmp_path / name, 0)]

    whole, again = module(0), module(1)
    fit(whole, 5, callbacks("whole"))
    fit(module(0), 2, callbacks("part"))
    fit(again, 5, callbacks("part"), ckpt_path=str(tmp_path / "part" / "last.ckpt"))
    for (name, expected), actual in zip(whole.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(actual, expected), name


# ------------------------------------------------------------------------------------------------------------------ the parts


@settings(max_examples=50)
@given(
    rows=st.lists(
        st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.lists(st.integers(0, 9), min_size=1, max_size=5)),
        min_size=1,
        max_size=6,
    ),
    cut=st.integers(0, 6),
)
def test_laid_out_in_parts_and_joined_is_laid_out_at_once(rows: list[tuple[list[int], list[int]]], cut: int) -> None:
    def build(part: list[tuple[list[int], list[int]]]) -> Generation:
        prompts, completions = [list(column) for column in zip(*part, strict=True)]
        generation = lay_out(prompts, completions, [len(c) == 5 for c in completions], 7, torch.device("cpu"))
        values = torch.zeros(generation.token_ids.shape)
        values[generation.response_mask] = torch.tensor([float(-i - 1) for c in completions for i in c])
        return generation._replace(sampler_logprobs=values)

    whole = build(rows)
    assert [(i[a & ~m].tolist(), i[m].tolist()) for i, a, m in zip(*whole[:3], strict=True)] == rows
    joined = join_generations([build(part) for part in (rows[:cut], rows[cut:]) if part], 7)
    for name, expected in whole._asdict().items():
        actual = getattr(joined, name)
        assert actual is None if expected is None else torch.equal(actual, expected), name


def test_generations_without_logprobs_are_joined_without() -> None:
    part = lay_out([[1], [2, 3]], [[4], [5]], [False, True], 0, torch.device("cpu"))
    assert join_generations([part, part], 0).sampler_logprobs is None


def test_the_rollouts_keep_the_samplers_logprobs(policy: Policy, vllm: Any) -> None:
    stage = make_stage(policy)
    generation = engine_for(policy)(policy.model, PROMPTS, 2, SAMPLED, SEEDS)
    rollouts = stage.judge(generation, [MathProblem("q", "1")] * 6, 2, 0)
    assert rollouts.sampler_logprobs is generation.sampler_logprobs
    part = rollouts.select(torch.tensor([4, 1]))
    assert part.sampler_logprobs is not None
    for row, origin in enumerate((4, 1)):
        expected = generation.sampler_logprobs[origin, generation.response_mask[origin]]
        assert torch.equal(part.sampler_logprobs[row, part.response_mask[row]], expected)


# -------------------------------------------------------------------------------------------------------------------- errors


class TestCheck:
    """Whether vLLM can run, asked before a model is loaded."""

    @pytest.fixture(autouse=True)
    def _true_check(self, monkeypatch: pytest.MonkeyPatch, stand_in: Any) -> None:
        monkeypatch.setattr(VllmConfig, "check", CHECK)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def test_all_is_well(self) -> None:
        for temperature in (0.0, 0.01, 1.0, 2.0):
            VllmConfig(max_model_len=81).check(SamplingConfig(temperature=temperature))

    def test_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ImportError, match=re.escape("engine=vllm needs the optional extra: pip install -e '.[vllm]'")):
            VllmConfig().check(SAMPLED)

    def test_no_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ValueError, match=r"engine=vllm runs on CUDA and torch finds no GPU here; use engine=auto"):
            VllmConfig().check(SAMPLED)

    @pytest.mark.parametrize("temperature", [0.005, 2.5])
    def test_temperature(self, temperature: float) -> None:
        with pytest.raises(ValueError, match=rf"rollout\.temperature must be 0 or in \[0\.01, 2\.0\] .* got {temperature}"):
            VllmConfig().check(SamplingConfig(temperature=temperature))

    def test_length(self) -> None:
        with pytest.raises(ValueError, match=r"engine\.max_model_len=80 .* must exceed rollout\.max_new_tokens=80"):
            VllmConfig(max_model_len=80).check(SamplingConfig(max_new_tokens=80))

    def test_the_engine_asks_too(self, policy: Policy, monkeypatch: pytest.MonkeyPatch, stand_in: type[fake_vllm.LLM]) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ValueError, match="engine=vllm runs on CUDA"):
            engine_for(policy)(policy.model, PROMPTS, 1, GREEDY, SEEDS)


CHECK = VllmConfig.check


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("gpu_memory_utilization", 0.0, r"engine\.gpu_memory_utilization .* got 0\.0"),
        ("gpu_memory_utilization", 1.1, r"engine\.gpu_memory_utilization .* got 1\.1"),
        (
            "max_model_len",
            1,
            r"engine\.max_model_len is the length of a prompt and a completion and must be >= 2 or null, got 1",
        ),
        ("tensor_parallel_size", 2, r"engine\.tensor_parallel_size must be 1, got 2: .* use engine=auto"),
    ],
)
def test_bad_settings_name_their_key(key: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VllmConfig(**{key: value})
