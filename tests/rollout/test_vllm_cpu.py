"""What vLLM needs on a CPU. Fast tests hold it over the stand-in; the slow ones run the true vLLM (`make vllm`)."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
import torch
from support import fake_vllm, true_vllm
from support.fixtures import LengthReward, make_stage, tiny_policy
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.policy.pretrained import LoraSpec, Policy
from oar_lightning.rollout import CachedEngine, Generation, SamplingConfig, VllmConfig, VllmEngine, vllm_cpu
from oar_lightning.rollout.continuations import Continuer

PROMPTS = ["Ann has 3 pens.\n", "Ben has 14 nuts. Ben buys 2.\n", "So\n"]
SEEDS = [11, 12, 13]
SAMPLED = SamplingConfig(max_new_tokens=16, temperature=0.7)
GREEDY = SamplingConfig(max_new_tokens=16, temperature=0.0)


@pytest.fixture
def policy() -> Policy:
    return spread(tiny_policy(head_size=32))


def spread(policy: Policy) -> Policy:
    """Weights so far from 0 that words differ in likelihood, and draws with the weights."""
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    return policy


def step(policy: Policy, optimizer: torch.optim.Optimizer, text: int = 0) -> None:
    ids = torch.randint(2, 300, (2, 40), generator=torch.Generator().manual_seed(text))
    policy.model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def own_logprobs(policy: Policy, generation: Generation, temperature: float = 0.7) -> torch.Tensor:
    with torch.no_grad():
        return token_logprobs(
            policy.model, generation.token_ids, generation.attention_mask, generation.response_mask, temperature
        )[0]


def rows(generation: Generation) -> list[list[int]]:
    return [ids[mask].tolist() for ids, mask in zip(generation.token_ids, generation.response_mask, strict=True)]


# ------------------------------------------------------------------------------------------------------ over the stand-in


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({}, False),
        ({"vllm": "0.32.0"}, False),
        ({"vllm": "0.32.0+cpu"}, True),
        ({"vllm-cpu": "0.32.0"}, True),
        ({"vllm": "0.32.0", "vllm-cpu": "0.32.0"}, False),  # as vLLM decides
    ],
    ids=str,
)
def test_the_build_is_known_by_its_version(versions: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(vllm_cpu, "version", version)
    assert vllm_cpu.built_for_cpu() is expected


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[fake_vllm.LLM]:
    return fake_vllm.install(monkeypatch, on_cpu=True)


def test_new_weights_reach_every_layer(policy: Policy, stand_in: type[fake_vllm.LLM]) -> None:
    engine, optimizer = VllmEngine(policy.tokenizer), torch.optim.AdamW(policy.model.parameters(), lr=1e-2)
    threads = torch.set_num_threads
    for _ in range(2):
        generation = engine(policy.model, PROMPTS, 2, SAMPLED, SEEDS)
        torch.testing.assert_close(generation.sampler_logprobs, own_logprobs(policy, generation), rtol=0, atol=1e-5)
        step(policy, optimizer)
    (llm,) = stand_in.made
    assert llm.arguments["dtype"] == "float32", "the policy's own"
    assert torch.set_num_threads is threads
    assert not vllm_cpu.packed_parameters(llm.model)


def test_packed_weights_are_found_out(policy: Policy, stand_in: type[fake_vllm.LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_cpu, "_keep_weights", fake_vllm.pack)
    with pytest.raises(RuntimeError, match=r"has packed the weights of .*weight and cannot be given others; use engine=auto"):
        VllmEngine(policy.tokenizer)(policy.model, PROMPTS, 1, GREEDY, SEEDS)


def test_heads_that_it_cannot_compute_are_refused(stand_in: type[fake_vllm.LLM]) -> None:
    policy = tiny_policy()
    with pytest.raises(ValueError, match=r"heads of 32, 64, .* numbers, and this one has heads of 8; use engine=auto"):
        VllmEngine(policy.tokenizer)(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    assert not stand_in.made


def test_the_check_knows_the_build(stand_in: type[fake_vllm.LLM]) -> None:
    VllmConfig().check(SAMPLED)
    with pytest.raises(ValueError, match=r"engine\.sleep=true: vLLM has no sleep mode on a CPU; set engine\.sleep=false"):
        VllmConfig(sleep=True).check(SAMPLED)


def test_more_at_once_than_it_takes_is_refused(policy: Policy, stand_in: type[fake_vllm.LLM]) -> None:
    sampling = SamplingConfig(max_new_tokens=4, max_batch=100_000)
    with pytest.raises(ValueError, match=r"rollout\.max_batch=100000 .* set rollout\.max_batch to at most 16384"):
        VllmEngine(policy.tokenizer)(policy.model, PROMPTS, 1, sampling, SEEDS)


# --------------------------------------------------------------------------------------------------------- over the true one

needs_vllm = pytest.mark.slow


@pytest.fixture
def true(monkeypatch: pytest.MonkeyPatch) -> Any:
    return true_vllm.install(monkeypatch)


def engine_for(policy: Policy, **settings: Any) -> VllmEngine:
    return VllmEngine(policy.tokenizer, VllmConfig(**{"enforce_eager": True} | settings))


def qwen3(policy: Policy) -> Policy:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    vocabulary = {"vocab_size": len(policy.tokenizer), "max_position_embeddings": 2048}
    config = Qwen3Config(**sizes, **vocabulary, num_key_value_heads=2, head_dim=32, tie_word_embeddings=False)
    return Policy(Qwen3ForCausalLM(config), policy.tokenizer)


def llama(policy: Policy) -> Policy:
    sizes = {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    vocabulary = {"vocab_size": len(policy.tokenizer), "max_position_embeddings": 2048}
    return Policy(LlamaForCausalLM(LlamaConfig(**sizes, **vocabulary, num_key_value_heads=2)), policy.tokenizer)


def qwen2(policy: Policy) -> Policy:
    return policy


def with_lora(policy: Policy) -> Policy:
    return Policy(LoraSpec(r=4, alpha=8, target_modules="all-linear").apply(policy.model), policy.tokenizer)


@needs_vllm
@pytest.mark.parametrize("make", [qwen2, qwen3, llama, with_lora])
def test_it_samples_from_the_policy_of_the_moment(make: Any, policy: Policy, true: Any) -> None:
    """Ten optimizer steps at a high rate; the policy moves by 0.4 nats a token and more, vLLM stays within 1e-4 of it."""
    policy = spread(make(policy)) if make in (qwen3, llama) else make(policy)
    engine = engine_for(policy)
    optimizer = torch.optim.AdamW((p for p in policy.model.parameters() if p.requires_grad), lr=1e-2)
    first = engine(policy.model, PROMPTS, 4, SAMPLED, SEEDS)
    before = own_logprobs(policy, first)
    for text in range(10):
        step(policy, optimizer, text)
        generation = engine(policy.model, PROMPTS, 4, SAMPLED, SEEDS)
        torch.testing.assert_close(generation.sampler_logprobs, own_logprobs(policy, generation), rtol=0, atol=1e-4)
    assert (own_logprobs(policy, first) - before)[first.response_mask].abs().mean() > 0.3
    greedy = [e(policy.model, PROMPTS, 1, GREEDY, SEEDS) for e in (engine, CachedEngine(policy.tokenizer))]
    assert rows(greedy[0]) == rows(greedy[1])
    assert len(true.made) == 1


@needs_vllm
def test_compiled_it_follows_the_policy_too(policy: Policy, true: Any) -> None:
    engine, optimizer = engine_for(policy, enforce_eager=False), torch.optim.AdamW(policy.model.parameters(), lr=1e-2)
    for text in range(3):
        generation = engine(policy.model, PROMPTS, 4, SAMPLED, SEEDS)
        torch.testing.assert_close(generation.sampler_logprobs, own_logprobs(policy, generation), rtol=0, atol=1e-4)
        step(policy, optimizer, text)


@needs_vllm
def test_seeds_hold_for_prompts_that_fill_more_than_a_pass(policy: Policy, true: Any) -> None:
    """120 prompts of 150 tokens and more: vLLM reads them over several passes, of which none may end inside a prompt."""
    long = [list(torch.randint(2, 300, (150 + i,), generator=torch.Generator().manual_seed(i))) for i in range(120)]
    prompts, seeds = [[int(t) for t in ids] for ids in long], list(range(100, 220))
    engine = engine_for(policy)
    whole = rows(engine(policy.model, prompts, 2, SAMPLED, seeds))
    assert rows(engine(policy.model, prompts[::-1], 2, SAMPLED, seeds[::-1]))[::-1] == [
        row for i in range(0, 240, 2) for row in (whole[i + 1], whole[i])
    ]
    assert rows(engine(policy.model, prompts[70:71], 2, SAMPLED, seeds[70:71])) == whole[140:142]


@needs_vllm
def test_more_samples_than_fit_into_its_cache_at_once(policy: Policy, true: Any) -> None:
    """With two sequences at a time most of them wait."""
    few = engine_for(policy)(policy.model, PROMPTS, 8, SamplingConfig(max_new_tokens=16, temperature=0.7, max_batch=2), SEEDS)
    all_at_once = engine_for(policy)(policy.model, PROMPTS, 8, SAMPLED, SEEDS)
    assert rows(few) == rows(all_at_once)


@needs_vllm
def test_continuations_are_the_loops_own_when_nothing_is_drawn(policy: Policy, true: Any) -> None:
    """Prefixes inside a prompt's completions, each with a limit of its own."""
    problems = [ChainProblems(ChainTask(min_steps=1, max_steps=2))[i] for i in range(3)]
    found = []
    for engine in (CachedEngine(policy.tokenizer), engine_for(policy)):
        stage = make_stage(policy, LengthReward())
        stage = type(stage)(**{**vars(stage), "engine": engine})
        rollouts = make_stage(policy, LengthReward())(policy.model, problems, 2, SAMPLED, SEEDS)
        ends = [int(mask.nonzero().max()) + 1 for mask in rollouts.response_mask]
        prefixes = [(row, end - left) for row, end in enumerate(ends) for left in (9, 5, 0)]
        greedy = Continuer(stage, GREEDY)(policy.model, rollouts, prefixes, 2, seed=5)
        drawn = Continuer(stage, SAMPLED)(policy.model, rollouts, prefixes, 4, seed=5)
        found.append((greedy, drawn))
    torch.testing.assert_close(found[0][0].rewards, found[1][0].rewards)
    assert found[0][0][1:] == found[1][0][1:]
    assert found[1][1].rewards.isfinite().all()
    again = Continuer(stage, SAMPLED)(policy.model, rollouts, prefixes, 4, seed=5)
    torch.testing.assert_close(again.rewards, found[1][1].rewards)


@needs_vllm
@pytest.mark.parametrize(
    ("settings", "sampling", "message"),
    [
        ({}, {"max_batch": 100_000}, r"rollout\.max_batch=100000 is more than vLLM .* set rollout\.max_batch to at most \d+"),
        ({"gpu_memory_utilization": 1.0}, {}, r"engine\.gpu_memory_utilization=1\.0 of the memory is not free: lower"),
        ({"gpu_memory_utilization": 0.001}, {}, r"engine\.gpu_memory_utilization=0\.001 of the memory leaves too little for"),
    ],
    ids=["rows", "more memory than is free", "less than it needs"],
)
def test_what_it_cannot_do_is_refused_in_our_words(
    settings: dict[str, Any],
    sampling: dict[str, Any],
    message: str,
    policy: Policy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true_vllm.install(monkeypatch, cache_bytes=None)
    with pytest.raises(ValueError, match=message):
        engine_for(policy, **settings)(policy.model, PROMPTS, 1, SamplingConfig(max_new_tokens=4, **sampling), SEEDS)


@needs_vllm
def test_a_length_beyond_the_policys_is_told(policy: Policy, true: Any) -> None:
    with pytest.raises(
        RuntimeError, match=r"engine=vllm did not start: .*max_model_len \(1000000\).*; engine=auto samples without vLLM"
    ):
        engine_for(policy, max_model_len=10**6)(policy.model, PROMPTS, 1, GREEDY, SEEDS)


@needs_vllm
def test_a_prompt_that_is_too_long_is_told(policy: Policy, true: Any) -> None:
    engine = engine_for(policy, max_model_len=32)
    with pytest.raises(RuntimeError, match=r"engine=vllm failed while it sampled completions of 1 prompts: .*32"):
        engine(policy.model, [[5] * 40], 1, GREEDY, [1])


@needs_vllm
def test_a_crash_is_told(policy: Policy, true: Any) -> None:
    engine = engine_for(policy)
    engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)

    def crash(model: Any) -> None:
        model.forward = broken

    def broken(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("illegal memory access")

    true.made[0].apply_model(crash)
    with pytest.raises(RuntimeError, match=r"failed while it sampled completions of 3 prompts: RuntimeError: illegal memory"):
        engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)


@needs_vllm
def test_the_process_is_left_as_it_was(policy: Policy, true: Any) -> None:
    threads = torch.set_num_threads
    engine_for(policy)(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    assert torch.set_num_threads is threads


@needs_vllm
def test_as_it_comes_it_could_not_be_given_weights(policy: Policy, true: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that `plain_linear_layers` mends is there: once it is gone upstream, so can that be."""
    from vllm.model_executor.layers import utils

    monkeypatch.setattr(vllm_cpu, "_keep_weights", utils.dispatch_cpu_unquantized_gemm)
    with pytest.raises(RuntimeError, match="has packed the weights"):
        engine_for(policy)(policy.model, PROMPTS, 1, GREEDY, SEEDS)
