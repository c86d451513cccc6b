"""Both engines: ids and masks, batching, and that what is drawn is the policy's own distribution."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.fixtures import tiny_policy
from support.toy import gpt2, phi3_longrope, qwen2_golden

from oar_lightning.common.randomness import generator
from oar_lightning.policy import language_model
from oar_lightning.policy.decoder import ModuleDecoder, choose_decoder
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.policy.pretrained import Policy
from oar_lightning.rollout import CachedEngine, Engine, Generation, HFEngine, SamplingConfig
from oar_lightning.rollout.cached import packed_rows
from oar_lightning.rollout.hf import together

PROMPTS = ["Ann has 3 pens.\n", "Ben has 14 nuts. Ben buys 2.\n", "So\n"]
GREEDY = SamplingConfig(max_new_tokens=12, temperature=0.0)


SEEDS = [11, 12, 13]


@pytest.fixture(params=[CachedEngine, HFEngine])
def engine(request: pytest.FixtureRequest, policy: Policy) -> Engine:
    return request.param(policy.tokenizer)


@pytest.fixture
def policy() -> Policy:
    """In float64, so that padding cannot turn an argmax."""
    policy = tiny_policy()
    policy.model.double().train()
    return policy


def with_likely_eos(policy: Policy, share: float = 0.15) -> Policy:
    """EOS gets about this probability at each step, so that completions end at different lengths."""
    bias = torch.zeros(len(policy.tokenizer), dtype=torch.float64)
    bias[policy.tokenizer.eos_token_id] = torch.tensor(share * len(bias) / (1 - share)).log()
    policy.model.lm_head.register_forward_hook(lambda module, inputs, out: out + bias)
    return policy


def completions(generation: Generation) -> list[list[int]]:
    rows = zip(generation.token_ids, generation.response_mask, strict=True)
    return [ids[mask].tolist() for ids, mask in rows]


def prompts_of(generation: Generation) -> list[list[int]]:
    rows = zip(generation.token_ids, generation.attention_mask & ~generation.response_mask, strict=True)
    return [ids[mask].tolist() for ids, mask in rows]


def check_masks(generation: Generation, eos: int, limit: int) -> None:
    for ids, attention, response, truncated in zip(*generation[:4], strict=True):
        columns = response.nonzero().flatten().tolist()
        assert columns == list(range(columns[0], columns[-1] + 1))
        assert attention[columns].all()
        used = attention.nonzero().flatten().tolist()
        assert used == list(range(used[0], columns[-1] + 1)), "padding lies outside only"
        ended = [i for i in columns if ids[i] == eos]
        assert ended == ([] if truncated else [columns[-1]])
        assert len(columns) <= limit
        if truncated:
            assert len(columns) == limit


def test_greedy_is_the_models_own(policy: Policy, engine: Engine) -> None:
    generation = engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    for prompt, ids, completion in zip(PROMPTS, prompts_of(generation), completions(generation), strict=True):
        assert ids == policy.tokenizer(prompt).input_ids
        own = policy.model.eval().generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
        assert completion == own[0, len(ids) :].tolist()
        greedy = list(ids)  # and by the definition
        for _ in completion:
            greedy.append(int(policy.model(torch.tensor([greedy])).logits[0, -1].argmax()))
        assert greedy == ids + completion


def test_rows_of_a_prompt_are_consecutive_and_differ(policy: Policy, engine: Engine) -> None:
    generation = engine(policy.model, PROMPTS, 4, SamplingConfig(max_new_tokens=8), SEEDS)
    expected = [ids for ids in policy.tokenizer(PROMPTS).input_ids for _ in range(4)]
    assert prompts_of(generation) == expected
    assert len({tuple(c) for c in completions(generation)}) == 12


def test_masks_end_at_the_first_eos(policy: Policy, engine: Engine) -> None:
    generation = engine(with_likely_eos(policy).model, PROMPTS, 16, SamplingConfig(max_new_tokens=10), SEEDS)
    check_masks(generation, policy.tokenizer.eos_token_id, 10)
    assert 0 < generation.truncated.sum() < 48
    lengths = {len(c) for c in completions(generation)}
    assert len(lengths) > 5


def test_the_pad_token_can_be_a_word_like_any_other(policy: Policy, engine: Engine) -> None:
    """A sampled pad id is part of the completion: masks, not ids, say what is padding."""
    pad = policy.tokenizer.pad_token_id
    bias = torch.zeros(len(policy.tokenizer), dtype=torch.float64)
    bias[pad] = 50.0
    policy.model.lm_head.register_forward_hook(lambda module, inputs, out: out + bias)
    generation = engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    assert completions(generation) == [[pad] * 12] * 3
    assert generation.truncated.all()


def test_every_eos_of_the_model_ends_a_completion(policy: Policy, engine: Engine) -> None:
    first = completions(engine(policy.model, PROMPTS[:1], 1, GREEDY, SEEDS[:1]))[0]
    stop = first[3]
    policy.model.generation_config.eos_token_id = [policy.tokenizer.eos_token_id, stop]
    generation = engine(policy.model, PROMPTS[:1], 1, GREEDY, SEEDS[:1])
    assert completions(generation)[0] == first[: first.index(stop) + 1]
    assert not generation.truncated.any()


@pytest.mark.parametrize("max_batch", [1, 2, 4, 5, 6, 100])
def test_batches_do_not_change_greedy_results(policy: Policy, engine: Engine, max_batch: int) -> None:
    with_likely_eos(policy, 0.02)
    prompts = [*PROMPTS, *PROMPTS[:2]]
    whole = engine(policy.model, prompts, 1, GREEDY, range(5))
    config = SamplingConfig(max_new_tokens=12, temperature=0.0, max_batch=max_batch)
    parts = engine(policy.model, prompts, 1, config, range(5))
    assert completions(parts) == completions(whole)
    assert prompts_of(parts) == prompts_of(whole)
    assert torch.equal(parts.truncated, whole.truncated)
    check_masks(parts, policy.tokenizer.eos_token_id, 12)


def test_batches_of_different_completion_lengths_are_joined(policy: Policy, engine: Engine) -> None:
    config = SamplingConfig(max_new_tokens=30, max_batch=2)
    generation = engine(with_likely_eos(policy, 0.3).model, PROMPTS, 4, config, SEEDS)
    check_masks(generation, policy.tokenizer.eos_token_id, 30)
    assert prompts_of(generation) == [ids for ids in policy.tokenizer(PROMPTS).input_ids for _ in range(4)]
    starts = generation.response_mask.long().argmax(1)
    assert len(set(starts.tolist())) == 1, "completions start in one column"


def uniform(policy: Policy) -> Policy:
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.zero_()  # tied: all logits are 0
    return policy


def draws_of(policy: Policy, engine: Engine, config: SamplingConfig, samples: int = 150) -> torch.Tensor:
    generation = engine(policy.model, PROMPTS[:1], samples, config, SEEDS[:1])
    ids = torch.tensor(list(itertools.chain.from_iterable(completions(generation))))
    return ids.bincount(minlength=len(policy.tokenizer)).double()


def test_the_whole_distribution_is_sampled(policy: Policy, engine: Engine) -> None:
    """A chi-square test: top-k = 50, transformers' default, would leave most of the vocabulary out."""
    counts = draws_of(uniform(policy), engine, SamplingConfig(max_new_tokens=60))
    size = len(counts)
    assert size > 260
    expected = counts.sum() / size
    assert expected > 5
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - (size - 1)) < 6 * (2 * (size - 1)) ** 0.5
    assert (counts > 0).sum() > 0.98 * size


def test_temperature_divides_the_logits(policy: Policy, engine: Engine) -> None:
    uniform(policy)
    bias = torch.zeros(len(policy.tokenizer), dtype=torch.float64)
    bias[7] = 3.0
    policy.model.lm_head.register_forward_hook(lambda module, inputs, out: out + bias)
    for temperature in (0.5, 1.0, 2.0):
        counts = draws_of(policy, engine, SamplingConfig(max_new_tokens=20, temperature=temperature))
        p = float((bias / temperature).softmax(0)[7])
        assert float(counts[7] / counts.sum()) == pytest.approx(p, abs=5 * (p * (1 - p) / float(counts.sum())) ** 0.5)


def test_top_p_keeps_the_nucleus(policy: Policy, engine: Engine) -> None:
    uniform(policy)
    bias = torch.zeros(len(policy.tokenizer), dtype=torch.float64)
    bias[[7, 9]] = 20.0
    policy.model.lm_head.register_forward_hook(lambda module, inputs, out: out + bias)
    counts = draws_of(policy, engine, SamplingConfig(max_new_tokens=10, top_p=0.9), samples=10)
    assert counts[[7, 9]].sum() == counts.sum()
    assert (counts[[7, 9]] > 0).all()


STORED: list[dict[str, Any]] = [
    {"repetition_penalty": 5.0},
    {"do_sample": True, "top_k": 1},
    {"do_sample": True, "min_p": 0.9},
    {"do_sample": True, "typical_p": 0.1},
    {"do_sample": True, "temperature": 0.01, "top_p": 0.1},
    {"num_beams": 2},
    {"no_repeat_ngram_size": 1},
    {"suppress_tokens": list(range(2, 200))},
    {"bad_words_ids": [[i] for i in range(2, 200)]},
    {"min_new_tokens": 8},
    {"max_length": 2},
    {"max_time": 0.0},
]


@pytest.mark.parametrize("stored", STORED, ids=lambda s: ",".join(s))
def test_defaults_stored_with_the_model_do_not_leak(policy: Policy, engine: Engine, stored: dict[str, Any]) -> None:
    # peaked, so that each of them matters
    policy.model.lm_head.register_forward_hook(lambda module, inputs, out: 2 * out / out.std(-1, keepdim=True))
    with_likely_eos(policy, 0.6)
    config = SamplingConfig(max_new_tokens=10)
    clean = [engine(policy.model, PROMPTS, 3, c, SEEDS) for c in (config, GREEDY) if torch.manual_seed(3)]
    for key, value in stored.items():
        setattr(policy.model.generation_config, key, value)
    lengths = [len(c) for c in completions(clean[0])]
    assert min(lengths) < 8 < max(lengths)
    before = policy.model.generation_config.to_dict()
    for expected, c in zip(clean, (config, GREEDY), strict=True):
        torch.manual_seed(3)
        generation = engine(policy.model, PROMPTS, 3, c, SEEDS)
        assert torch.equal(generation.token_ids, expected.token_ids)
    assert policy.model.generation_config.to_dict() == before


def test_adapters_act_and_stored_defaults_do_not_leak_through_them(policy: Policy, engine: Engine) -> None:
    pytest.importorskip("peft")
    from oar_lightning.policy.pretrained import LoraSpec

    plain = completions(engine(policy.model, PROMPTS, 1, GREEDY, SEEDS))
    adapted = LoraSpec(r=4).apply(policy.model)
    assert completions(engine(adapted, PROMPTS, 1, GREEDY, SEEDS)) == plain
    for name, p in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=2.0)
    changed = completions(engine(adapted, PROMPTS, 1, GREEDY, SEEDS))
    assert changed != plain
    adapted.generation_config.repetition_penalty = 5.0
    assert completions(engine(adapted, PROMPTS, 1, GREEDY, SEEDS)) == changed
    for model in (adapted, adapted.get_base_model()):
        assert model.generation_config.repetition_penalty == 5.0


def test_the_models_modes_and_gradients_are_left_alone(policy: Policy, engine: Engine) -> None:
    policy.model.model.layers[0].eval()
    modes = [m.training for m in policy.model.modules()]
    generation = engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    assert [m.training for m in policy.model.modules()] == modes
    assert all(p.grad is None and p.requires_grad for p in policy.model.parameters())
    assert not generation.token_ids.is_inference()


def test_a_prompt_without_tokens_is_refused(policy: Policy, engine: Engine) -> None:
    with pytest.raises(ValueError, match=r"data\.prompt: 1 of 2 prompts have no tokens \(first: number 1\)"):
        engine(policy.model, ["So", ""], 1, GREEDY, SEEDS[:2])


def test_a_prompt_that_the_policy_cannot_read_is_refused(policy: Policy, engine: Engine) -> None:
    policy.model.config.max_position_embeddings = 20
    with pytest.raises(ValueError, match=r"max_new_tokens=12 and the longest prompt .* beyond the 20 positions of the policy"):
        engine(policy.model, PROMPTS, 1, GREEDY, SEEDS)
    with pytest.raises(
        ValueError, match=r"max_new_tokens=25 .* to at most \d+, or choose another policy"
    ):  # no prompt would fit
        engine(policy.model, PROMPTS, 1, dataclasses.replace(GREEDY, max_new_tokens=25), SEEDS)
    size = policy.model.config.vocab_size
    with pytest.raises(ValueError, match=rf"a prompt holds token {size}, and the policy has {size}"):
        engine(policy.model, [[3, size]], 1, GREEDY, SEEDS[:1])


@pytest.mark.parametrize(
    ("key", "value"), [("max_new_tokens", 0), ("temperature", -0.1), ("top_p", 0.0), ("top_p", 1.1), ("max_batch", 0)]
)
def test_bad_settings_name_their_key(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"rollout\.{key} must be .*got {value}"):
        SamplingConfig(**{key: value})


SAMPLED = SamplingConfig(max_new_tokens=12)


@pytest.mark.parametrize("max_batch", [1, 3, 4, 7])
def test_draws_belong_to_the_completion_not_to_the_batch(policy: Policy, engine: Engine, max_batch: int) -> None:
    model = with_likely_eos(policy).model
    whole = completions(engine(model, PROMPTS, 4, SAMPLED, SEEDS))
    parts = engine(model, PROMPTS, 4, SamplingConfig(max_new_tokens=12, max_batch=max_batch), SEEDS)
    assert completions(parts) == whole
    alone = engine(model, PROMPTS[1:2], 4, SAMPLED, SEEDS[1:2])
    assert completions(alone) == whole[4:8]
    turned = engine(model, PROMPTS[::-1], 4, SAMPLED, SEEDS[::-1])
    assert completions(turned) == whole[8:] + whole[4:8] + whole[:4]
    other = completions(engine(model, PROMPTS, 4, SAMPLED, [11, 99, 13]))
    assert other[:4] + other[8:] == whole[:4] + whole[8:]
    assert other[4:8] != whole[4:8]


@pytest.mark.parametrize("limits", [None, [3, 12, 7]])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_p": 0.8}, {"temperature": 0.0}], ids=str)
def test_engines_draw_the_same_completions(policy: Policy, sampling: dict[str, float], limits: list[int] | None) -> None:
    model, config = with_likely_eos(policy).model, SamplingConfig(max_new_tokens=12, **sampling)
    own, of_generate = (e(policy.tokenizer)(model, PROMPTS, 5, config, SEEDS, limits) for e in (CachedEngine, HFEngine))
    assert completions(own) == completions(of_generate)
    assert torch.equal(own.truncated, of_generate.truncated)


def test_the_global_random_state_is_left_alone(policy: Policy, engine: Engine) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = engine(policy.model, PROMPTS, 2, SAMPLED, SEEDS)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(engine(policy.model, PROMPTS, 2, SAMPLED, SEEDS).token_ids, first.token_ids)


def test_one_seed_a_prompt(policy: Policy, engine: Engine) -> None:
    with pytest.raises(ValueError, match="3 prompts and 2 seeds"):
        engine(policy.model, PROMPTS, 2, SAMPLED, SEEDS[:2])


@pytest.mark.parametrize("model", [gpt2, qwen2_golden], ids=["learned positions", "rotary"])
def test_sampled_ids_follow_from_the_full_forward(model: Any) -> None:
    """Each token is the inverse of the teacher-forced distribution at the completion's own random numbers."""
    policy = model()
    engine = CachedEngine(ToyTokenizer())
    generation = engine(policy, ["3 7 9", "5"], 5, SamplingConfig(max_new_tokens=6, temperature=0.8, top_p=0.9), [1, 2])
    policy.eval()
    for row in range(10):
        uniforms = torch.rand(5, 6, generator=generator([1, 2][row // 5]))[row % 5].double()
        prompt = prompts_of(generation)[row]
        completion = completions(generation)[row]
        logits = policy(torch.tensor([prompt + completion])).logits[0].double() / 0.8
        for i, token in enumerate(completion):
            p, order = logits[len(prompt) - 1 + i].softmax(0).sort(descending=True)
            inside = int((p.cumsum(0) - p < 0.9).sum())
            total = float(p[:inside].sum())
            before = float(p[: int((order == token).nonzero())].sum())
            assert before <= float(uniforms[i]) * total + 1e-9
            assert float(uniforms[i]) * total <= before + float(p[order == token]) + 1e-9


def test_the_plain_decoder_draws_what_the_modules_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32, 192 completions of up to 20 tokens; the states differ by rounding."""
    policy = with_likely_eos(tiny_policy(), 0.08)
    config = SamplingConfig(max_new_tokens=20)
    sampled = []
    for decoder in (choose_decoder, ModuleDecoder):
        monkeypatch.setattr("oar_lightning.policy.decoder.choose_decoder", decoder)
        sampled.append(CachedEngine(policy.tokenizer)(policy.model, PROMPTS, 64, config, SEEDS))
    plain, modules = sampled
    for actual, expected in zip(plain[:4], modules[:4], strict=True):
        assert torch.equal(actual, expected)
    assert 10 < modules.truncated.sum() < 100
    torch.testing.assert_close(plain.prediction_states, modules.prediction_states, rtol=0, atol=1e-4)
    assert not torch.equal(plain.prediction_states, modules.prediction_states)


@pytest.mark.parametrize("stay", ["", "1", "0", "0111", "1110", "0101100111", "1111", "1000000"])
def test_rows_that_stay_fill_the_gaps(stay: str) -> None:
    mask = torch.tensor([letter == "1" for letter in stay], dtype=torch.bool)
    rows = packed_rows(mask).tolist()
    assert sorted(rows) == mask.nonzero().flatten().tolist()
    kept = [i for i in range(len(rows)) if stay[i] == "1"]
    assert [rows[i] for i in kept] == kept


class ToyTokenizer:
    """Numbers are their own ids."""

    pad_token_id, eos_token_id = 0, 1

    def __call__(self, texts: list[str], add_special_tokens: bool) -> Any:
        return SimpleNamespace(input_ids=[[int(t) for t in text.split()] for text in texts])


LONG, SHORT = "5 " * 10, "6 7 8 9 " * 12


@pytest.mark.parametrize("sampling", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
def test_a_row_at_its_limit_is_not_read_beyond_the_positions(sampling: SamplingConfig) -> None:
    """GPT-2 has 64. The second row has come to its limit when the first has 48 tokens to go."""
    own, of_generate = (
        e(ToyTokenizer())(gpt2(), [LONG, SHORT], 3, sampling, [1, 2], [54, 6]) for e in (CachedEngine, HFEngine)
    )
    assert completions(of_generate) == completions(own)
    assert torch.equal(of_generate.truncated, own.truncated)
    assert prompts_of(of_generate) == prompts_of(own)


def test_a_row_at_its_limit_turns_no_other_row() -> None:
    """Longrope takes other angles for a whole batch once one text is longer than its bound."""
    model, engine = phi3_longrope(64), HFEngine(ToyTokenizer())
    alone = [engine(model, [p], 4, SAMPLED, [s], [n]) for p, s, n in ((LONG, 1, 54), (SHORT, 2, 6))]
    both = engine(model, [LONG, SHORT], 4, SAMPLED, [1, 2], [54, 6])
    assert max(map(len, completions(both)[:4])) > 20
    assert completions(both) == completions(alone[0]) + completions(alone[1])
    assert both.truncated.tolist() == alone[0].truncated.tolist() + alone[1].truncated.tolist()


def test_rows_are_completed_together_as_far_as_positions_allow() -> None:
    lengths, limits = [10, 50, 30, 12], [54, 10, 30, 20]
    assert list(together(lengths, limits, None)) == [(54, [0, 1, 2, 3])]
    assert list(together(lengths, limits, 104)) == [(54, [0, 1, 2, 3])]
    assert list(together(lengths, limits, 103)) == [(54, [0, 2, 3]), (10, [1])]
    assert list(together(lengths, limits, 64)) == [(54, [0]), (30, [2, 3]), (10, [1])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("max_batch", [None, 4])
def test_states_left_by_sampling_give_the_log_probabilities_of_a_pass_over_the_text(dtype, max_batch) -> None:
    """The stated tolerance: 1e-4 nats in float32."""
    policy = with_likely_eos(tiny_policy())
    policy.model.to(dtype)
    config = SamplingConfig(max_new_tokens=6, max_batch=max_batch)
    generation = CachedEngine(policy.tokenizer)(policy.model, PROMPTS, 3, config, SEEDS)
    assert generation.prediction_states is not None
    assert generation.truncated.any()
    assert not generation.truncated.all()
    assert not generation.prediction_states[~generation.response_mask].any()
    batch = (policy.model, generation.token_ids, generation.attention_mask, generation.response_mask)
    with torch.no_grad():
        expected = token_logprobs(*batch)
        actual = token_logprobs(*batch, states=generation.prediction_states)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4 if dtype == torch.float32 else 1e-6)
    assert float(expected[0].min()) < -1


def test_states_in_half_precision_or_too_many_are_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy()
    engine, config = CachedEngine(policy.tokenizer), SamplingConfig(max_new_tokens=4)
    with torch.autocast("cpu", torch.bfloat16):
        assert engine(policy.model, PROMPTS, 1, config, SEEDS).prediction_states is None
    monkeypatch.setattr(language_model, "STATES_BYTES", 100)
    assert engine(policy.model, PROMPTS, 1, config, SEEDS).prediction_states is None
    of_completions = len(PROMPTS) * config.max_new_tokens * policy.model.config.hidden_size * 4
    monkeypatch.setattr(language_model, "STATES_BYTES", of_completions)
    assert engine(policy.model, PROMPTS, 1, config, SEEDS).prediction_states is None, "prompts have states, too"
    policy.model.bfloat16()
    monkeypatch.undo()
    assert engine(policy.model, PROMPTS, 1, config, SEEDS).prediction_states is None


@pytest.mark.parametrize("token_budget", [1, 25, 60, 10**6])
def test_batches_by_length_give_the_same_completions_in_the_same_rows(token_budget: int) -> None:
    policy = with_likely_eos(tiny_policy())
    policy.model.double()
    engine = CachedEngine(policy.tokenizer)
    whole = engine(policy.model, PROMPTS, 3, SamplingConfig(max_new_tokens=6), SEEDS)
    parts = engine(policy.model, PROMPTS, 3, SamplingConfig(max_new_tokens=6, token_budget=token_budget), SEEDS)
    assert len({len(p) for p in prompts_of(whole)}) > 1
    assert completions(parts) == completions(whole)
    assert prompts_of(parts) == prompts_of(whole)
    assert parts.prediction_states is not None
    assert whole.prediction_states is not None
    torch.testing.assert_close(parts.prediction_states, whole.prediction_states, rtol=0, atol=1e-5)


def test_batches_keep_within_their_limits() -> None:
    lengths = [5, 1, 9, 3, 3, 7]
    config = SamplingConfig(max_new_tokens=10, token_budget=40)
    assert config.batches(lengths) == [[1, 3, 4], [0, 5], [2]]
    assert SamplingConfig(max_new_tokens=10, token_budget=40, max_batch=2).batches(lengths) == [[1, 3], [4], [0, 5], [2]]
    assert SamplingConfig(max_batch=4).batches(lengths) == [[0, 1, 2, 3], [4, 5]]
    assert SamplingConfig().batches(lengths) == [[0, 1, 2, 3, 4, 5]]
