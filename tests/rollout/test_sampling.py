"""Prompts and completions as tensors, and their bounds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support.fixtures import tiny_policy
from support.toy import phi3_longrope

from oar_lightning.rollout.sampling import (
    Generation,
    check_prompts,
    cut,
    encode_prompts,
    join_generations,
    lay_out,
    pad_left,
)


def test_pad_left() -> None:
    ids, mask = pad_left([[5, 6], [7]], 0, torch.device("cpu"))
    assert ids.tolist() == [[5, 6], [0, 7]]
    assert mask.tolist() == [[True, True], [False, True]]


class Letters:
    """Encodes letters as their places in the alphabet."""

    def __call__(self, texts: list[str], add_special_tokens: bool) -> SimpleNamespace:
        assert not add_special_tokens
        return SimpleNamespace(input_ids=[[ord(c) - 96 for c in text] for text in texts])


def test_texts_are_encoded_and_ids_stay() -> None:
    assert encode_prompts(Letters(), ["abc", (7, 8), "b"], range(3)) == [[1, 2, 3], [7, 8], [2]]
    with pytest.raises(ValueError, match=r"1 of 2 prompts have no tokens \(first: number 1\)"):
        encode_prompts(Letters(), ["a", ""], range(2))
    with pytest.raises(ValueError, match="2 prompts and 1 seeds"):
        encode_prompts(Letters(), ["a", "b"], [0])


def laid_out(prompts: list[list[int]], completions: list[list[int]]) -> Generation:
    return lay_out(prompts, completions, [False] * len(prompts), 0, torch.device("cpu"))


def test_prompts_end_and_completions_begin_at_one_column() -> None:
    found = lay_out([[5, 6], [7]], [[1], [2, 3, 4]], [True, False], 9, torch.device("cpu"))
    assert found.token_ids.tolist() == [[5, 6, 1, 9, 9], [9, 7, 2, 3, 4]]
    assert found.attention_mask.int().tolist() == [[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]]
    assert found.response_mask.int().tolist() == [[0, 0, 1, 0, 0], [0, 0, 1, 1, 1]]
    assert found.truncated.tolist() == [True, False]


def test_completions_are_cut_at_their_limits() -> None:
    found = cut(laid_out([[5], [5], [5]], [[1, 2], [1, 2], [1]]), [1, 2, 0])
    assert found.response_mask.int().tolist() == [[0, 1, 0], [0, 1, 1], [0, 0, 0]]
    assert found.attention_mask.int().tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0]]
    assert found.truncated.tolist() == [True, False, True]


def test_generations_are_joined_at_the_column_where_completions_begin() -> None:
    parts = [laid_out([[5, 6, 7]], [[1]]), laid_out([[8]], [[2, 3]])]
    # a token's state: its id, and what would show that a column was added to it
    parts = [
        p._replace(prediction_states=torch.stack([p.token_ids, -p.token_ids], -1), sampler_logprobs=p.token_ids / 2)
        for p in parts
    ]
    found = join_generations(parts, 9, [[1], [0]])
    ids = [[9, 9, 8, 2, 3], [5, 6, 7, 1, 9]]
    assert found.token_ids.tolist() == ids
    assert found.attention_mask.int().tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert found.response_mask.int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 1, 0]]
    there = torch.where(found.attention_mask, torch.tensor(ids), 0)
    assert found.prediction_states is not None
    assert found.sampler_logprobs is not None
    assert torch.equal(found.prediction_states, torch.stack([there, -there], -1))
    assert torch.equal(found.sampler_logprobs, there / 2)


def test_the_remedy_for_a_long_prompt_is_one_that_helps() -> None:
    model = tiny_policy().model
    with pytest.raises(ValueError, match=r"beyond the 8 tokens of engine\.max_model_len; raise engine\.max_model_len$"):
        check_prompts(model, [[1] * 9], [8], 8)
    with pytest.raises(
        ValueError, match=r"; set rollout\.max_new_tokens to at most 2, take .* than 3 tokens out of the set, or raise eng"
    ):
        check_prompts(model, [[1] * 6], [5], 8)


def test_texts_beyond_the_rotation_that_they_began_with_are_refused() -> None:
    """Phi-3's longrope turns all positions by other angles once a text is longer than this."""
    model = phi3_longrope(24)
    check_prompts(model, [[1] * 20], [4])
    with pytest.raises(ValueError, match=r"beyond the 24 tokens up to which its rotary embedding \(longrope\) is one"):
        check_prompts(model, [[1] * 20], [5])
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4}
    check_prompts(model, [[1] * 20], [5])
