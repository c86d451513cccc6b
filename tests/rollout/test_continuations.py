"""Continuations of prefixes against sampling by hand, and other prompts before given completions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from support.fixtures import LengthReward, make_stage, tiny_policy
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from oar_lightning.answers.reward import Completion
from oar_lightning.common.randomness import derive_seed
from oar_lightning.policy.decoder import GrowingTexts
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.policy.token_text import encodable
from oar_lightning.rollout import SamplingConfig
from oar_lightning.rollout.continuations import LEAST_BYTES, LEAST_TOKENS, Continuer, Encoder, Reprompter, batch_tokens
from oar_lightning.types import MathProblem, Prefix, Rollouts

POLICY = tiny_policy()
STAGE = make_stage(POLICY, LengthReward())
SAMPLING = SamplingConfig(max_new_tokens=10)
EMPTY = Completion("", None, False, 0)
PROBLEMS = [MathProblem("1 + 2 + 3 =", "6"), MathProblem("12 - 5 =", "7")]


@pytest.fixture(scope="module")
def rollouts() -> Rollouts:
    return STAGE(POLICY.model, PROBLEMS, 2, SAMPLING, [1, 2])


def start(rollouts: Rollouts, row: int, tokens: int) -> Prefix:
    """The prompt and the first `tokens` tokens of a completion."""
    return Prefix(row, int(rollouts.response_mask[row].nonzero()[0]) + tokens)


def test_the_rewards_are_those_of_completions_that_begin_with_the_prefix(rollouts: Rollouts) -> None:
    """Sampled by hand: the engine on the prefix's ids, each continuation with what is left of the limit."""
    prefixes = [start(rollouts, 0, 0), start(rollouts, 1, 3), start(rollouts, 2, 1)]
    found = Continuer(STAGE, SAMPLING)(POLICY.model, rollouts, prefixes, 4, seed=7)
    sampled = read = 0
    for prefix, rewards in zip(prefixes, found.rewards, strict=True):
        row = rollouts.token_ids[prefix.row, : prefix.column][rollouts.attention_mask[prefix.row, : prefix.column]].tolist()
        read += len(row)
        begun = int(rollouts.response_mask[prefix.row, : prefix.column].sum())
        config = dataclasses.replace(SAMPLING, max_new_tokens=10 - begun)
        by_hand = STAGE.engine(POLICY.model, [row], 4, config, [derive_seed(7, "continuation", *row)])
        problem = rollouts.problems[prefix.row]
        for k in range(4):
            ids = by_hand.token_ids[k, by_hand.response_mask[k]].tolist()
            sampled += len(ids)
            whole = row[len(row) - begun :] + ids
            text = encodable(STAGE.token_bytes.decode(whole).text)
            expected = LengthReward()([problem], [EMPTY._replace(text=text, num_tokens=len(whole))])
            assert rewards[k] == pytest.approx(expected[0])
    assert (found.sampled, found.tokens) == (12, read + sampled)


def test_equal_prefixes_are_sampled_once_and_draws_depend_on_the_prefix_alone(rollouts: Rollouts) -> None:
    continuer = Continuer(STAGE, SAMPLING)
    same_prompt = [start(rollouts, 0, 0), start(rollouts, 1, 0)]
    both = continuer(POLICY.model, rollouts, same_prompt, 5, seed=1)
    one = continuer(POLICY.model, rollouts, same_prompt[1:], 5, seed=1)
    assert torch.equal(both.rewards[0], both.rewards[1])
    assert torch.equal(both.rewards[1:], one.rewards)
    assert both[1:] == one[1:]
    among_others = continuer(POLICY.model, rollouts, [start(rollouts, 2, 2), *same_prompt], 5, seed=1)
    assert torch.equal(among_others.rewards[1:], both.rewards)
    assert not torch.equal(continuer(POLICY.model, rollouts, same_prompt, 5, seed=2).rewards, both.rewards)


def test_greedy_continuations_take_the_most_probable_tokens(rollouts: Rollouts) -> None:
    """One by one, each with a pass of the model itself; the seed does not matter."""
    prefix = start(rollouts, 0, 2)
    ids = rollouts.token_ids[0, : prefix.column][rollouts.attention_mask[0, : prefix.column]].tolist()
    text = ids[-2:]
    with torch.no_grad():
        while len(text) < 10 and text[-1] != POLICY.tokenizer.eos_token_id:
            text.append(int(POLICY.model(torch.tensor([ids[:-2] + text])).logits[0, -1].argmax()))
    written = EMPTY._replace(text=encodable(STAGE.token_bytes.decode(text).text), num_tokens=len(text))
    for seed in (1, 2):
        found = Continuer(STAGE, SAMPLING)(POLICY.model, rollouts, [prefix], 1, seed, greedy=True)
        assert found.rewards.item() == pytest.approx(LengthReward()([PROBLEMS[0]], [written])[0])
        assert found.tokens == len(ids) - 2 + len(text)


def test_a_whole_completion_gets_its_own_reward(rollouts: Rollouts) -> None:
    whole = [start(rollouts, row, int(rollouts.response_mask[row].sum())) for row in range(4)]
    found = Continuer(STAGE, SAMPLING)(POLICY.model, rollouts, whole, 3, seed=0)
    assert torch.equal(found.rewards, rollouts.rewards[:, None].expand(4, 3))
    assert (found.sampled, found.tokens) == (0, 0)


def test_no_prefix_costs_nothing(rollouts: Rollouts) -> None:
    assert Continuer(STAGE, SAMPLING)(POLICY.model, rollouts, [], 3, seed=0).rewards.shape == (0, 3)


def test_texts_are_written_in_the_policys_tokens() -> None:
    before, text = Encoder(STAGE)("The answer is ", "12")
    assert POLICY.tokenizer.decode(before) + POLICY.tokenizer.decode(text) == "The answer is 12"


def test_other_questions_before_the_same_completions(rollouts: Rollouts) -> None:
    """Log-probabilities are those of the completion after the other question's prompt, read alone."""
    questions = ["What is 1 + 2 + 3? It is 6.", "1", "12 - 5 = 7, so 12 - 5 =", "?"]
    asked = Reprompter(STAGE)(rollouts, questions)
    found = token_logprobs(POLICY.model, asked.token_ids, asked.attention_mask, asked.response_mask)[0]
    for row, question in enumerate(questions):
        prompt = POLICY.tokenizer(question + "\n", add_special_tokens=False).input_ids
        completion = rollouts.token_ids[row, rollouts.response_mask[row]].tolist()
        assert asked.token_ids[row, asked.attention_mask[row]].tolist() == prompt + completion
        ids = torch.tensor([prompt + completion])
        mask = torch.arange(ids.shape[1])[None] >= len(prompt)
        alone = token_logprobs(POLICY.model, ids, torch.ones_like(mask), mask)[0]
        torch.testing.assert_close(found[row, asked.response_mask[row]], alone[mask], rtol=1e-4, atol=1e-5)
        for name in ("reasoning_mask", "answer_mask"):
            before, after = getattr(rollouts, name)[row], getattr(asked, name)[row]
            assert torch.equal(before[rollouts.response_mask[row]], after[asked.response_mask[row]])


@pytest.mark.parametrize(
    "bound",
    [
        {},
        *(pytest.param(b, marks=pytest.mark.slow) for b in ({"max_batch": 3}, {"token_budget": 60}, {"token_budget": "auto"})),
    ],
)
def test_batches_hold_no_more_tokens_than_the_rollouts_unless_they_have_a_bound(
    bound: dict[str, Any], rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many continuations are the same in parts as in one batch, and no pass over them is larger than sampling's."""
    monkeypatch.setattr("oar_lightning.rollout.continuations.LEAST_TOKENS", 1)
    monkeypatch.setattr("oar_lightning.rollout.continuations.LEAST_BYTES", 1)
    prefixes = [start(rollouts, row, n) for row in range(4) for n in range(3)]
    expected = Continuer(STAGE, dataclasses.replace(SAMPLING, max_batch=999))(POLICY.model, rollouts, prefixes, 20, seed=3)
    widths: list[tuple[int, int]] = []
    read = GrowingTexts.__call__

    def counting(texts: GrowingTexts, ids: Tensor) -> Tensor:
        widths.append((len(ids), texts.width + ids.shape[1]))
        return read(texts, ids)

    monkeypatch.setattr(GrowingTexts, "__call__", counting)
    found = Continuer(STAGE, dataclasses.replace(SAMPLING, **bound))(POLICY.model, rollouts, prefixes, 20, seed=3)
    assert torch.equal(found.rewards, expected.rewards)
    if "max_batch" in bound:
        assert max(rows for rows, _ in widths) == 3
    else:
        limit = 60 if bound.get("token_budget") == 60 else rollouts.token_ids.numel()
        assert max(rows * width for rows, width in widths) <= limit


@pytest.mark.parametrize(
    ("layers", "hidden", "of_rollouts", "expected"),
    [(2, 64, 100, LEAST_BYTES // (2 * 2 * 64 * 4)), (28, 1536, 100, LEAST_TOKENS), (28, 1536, 10**6, 10**6)],
)
def test_a_small_policy_continues_more_prefixes_at_once(layers: int, hidden: int, of_rollouts: int, expected: int) -> None:
    """As many as have so many bytes of states; a large one those that fit as rollouts did."""
    config = Qwen2Config(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=hidden // 32, vocab_size=8)
    with torch.device("meta"):
        assert batch_tokens(Qwen2ForCausalLM(config), of_rollouts) == expected


def test_memory_that_runs_out_lowers_the_runs_own_budget(rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `auto`: the batch is repeated in parts, and the smaller bound stays."""
    sampling = dataclasses.replace(SAMPLING, token_budget="auto")
    prefixes = [start(rollouts, 0, 0), start(rollouts, 2, 0)]
    expected = Continuer(STAGE, SAMPLING)(POLICY.model, rollouts, prefixes, 4, seed=3)
    monkeypatch.setattr("oar_lightning.rollout.continuations.LEAST_TOKENS", 1)
    monkeypatch.setattr("oar_lightning.rollout.continuations.LEAST_BYTES", 1)
    read = GrowingTexts.__call__

    def small(texts: GrowingTexts, ids: Tensor) -> Tensor:
        if len(ids) > 2:
            raise MemoryError("no room")
        return read(texts, ids)

    monkeypatch.setattr(GrowingTexts, "__call__", small)
    found = Continuer(STAGE, sampling)(POLICY.model, rollouts, prefixes, 4, seed=3)
    assert torch.equal(found.rewards, expected.rewards)
    assert sampling.budget.tokens is not None
    assert sampling.budget.tokens < rollouts.token_ids.numel()


def test_completions_that_are_longer_than_a_run_samples_are_continued_to_their_own_length(rollouts: Rollouts) -> None:
    """Those of a file may be; the prefix of one had less than nothing left."""
    short = dataclasses.replace(SAMPLING, max_new_tokens=3)
    row = int(rollouts.response_mask.sum(1).argmax())
    length = int(rollouts.response_mask[row].sum())
    assert length > 5
    prefixes = [start(rollouts, row, 5), start(rollouts, row, 3), start(rollouts, row, 1)]
    found = Continuer(STAGE, short)(POLICY.model, rollouts, prefixes, 4, seed=7)
    expected = Continuer(STAGE, dataclasses.replace(SAMPLING, max_new_tokens=length))(
        POLICY.model, rollouts, prefixes, 4, seed=7
    )
    assert torch.equal(found.rewards, expected.rewards)
    assert found.tokens == expected.tokens


def test_each_row_is_continued_to_its_own_limit_whatever_other_rows_begin_alike(rollouts: Rollouts) -> None:
    """The prompt of two completions of a file, of which one is longer than a run samples."""
    short = dataclasses.replace(SAMPLING, max_new_tokens=3)
    columns = rollouts.response_mask.long().cumsum(1)
    kept = columns <= torch.tensor([6, 2, 10, 10])[:, None]
    masks = {
        name: getattr(rollouts, name) & kept for name in ("attention_mask", "response_mask", "reasoning_mask", "answer_mask")
    }
    recorded = dataclasses.replace(rollouts, **masks)
    assert recorded.response_mask[:2].sum(1).tolist() == [6, 2]
    found = Continuer(STAGE, short)(POLICY.model, recorded, [start(recorded, 1, 0), start(recorded, 0, 0)], 8, seed=7)
    for rewards, limit in zip(found.rewards, (3, 6), strict=True):
        own = Continuer(STAGE, dataclasses.replace(SAMPLING, max_new_tokens=limit))
        expected = own(
            POLICY.model, recorded.select(torch.tensor([1])), [start(recorded.select(torch.tensor([1])), 0, 0)], 8, 7
        )
        assert torch.equal(rewards, expected.rewards[0])
    assert not torch.equal(*found.rewards)
    assert found.sampled == 16
