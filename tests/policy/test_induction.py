"""Heads that look up: what they attend to, by what was built into the text."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from oar_lightning.policy.fresh import FreshPolicy
from oar_lightning.policy.pretrained import Policy

HEADS = 4


@pytest.fixture(scope="module")
def policy() -> Policy:
    texts = ["one two three four five six seven eight nine ten"] * 3
    policy = FreshPolicy(hidden_size=128, num_layers=2, num_heads=HEADS, num_kv_heads=HEADS, induction_heads=True).build(texts)
    policy.model.set_attn_implementation("eager")
    return policy


def attentions(policy: Policy, token_ids: list[int]) -> list[Tensor]:
    """[H S S] of each layer."""
    with torch.no_grad():
        return [layer[0] for layer in policy.model(torch.tensor([token_ids]), output_attentions=True).attentions]


def test_a_head_of_the_first_layer_attends_to_one_place_before(policy: Policy) -> None:
    first, _ = attentions(policy, random.Random(0).sample(range(200), 60))
    for head in range(HEADS):
        back = first[head].diagonal(-(head + 1))[HEADS:]
        assert back.min() > 0.5, head
        assert back.mean() > 0.8, head


@pytest.mark.parametrize("head", range(HEADS))
def test_a_head_of_the_second_layer_finds_what_followed_the_same_token(policy: Policy, head: int) -> None:
    """A text of different tokens, then one of them again, and as many places on as the head looks back."""
    draw = random.Random(head)
    right = 0
    for _ in range(20):
        text = draw.sample(range(200), 60)
        at = draw.randrange(10, 40)
        places = (head + 1) % HEADS  # the last head compares the query's own token
        _, second = attentions(policy, [*text, text[at], *draw.sample(range(200, 250), places)])
        right += int(second[head, -1].argmax()) == at + places + 1
    assert right >= 16, "chance is one in sixty"


@pytest.mark.parametrize(("layers", "kv_heads"), [(1, 4), (2, 2)])
def test_what_it_needs_is_told(layers: int, kv_heads: int) -> None:
    with pytest.raises(ValueError, match=r"policy.induction_heads=true needs two layers or more and policy.num_kv_heads=4"):
        FreshPolicy(hidden_size=128, num_layers=layers, num_heads=4, num_kv_heads=kv_heads, induction_heads=True)


@pytest.mark.parametrize(("hidden", "heads"), [(8, 1), (20, 2), (24, 4)])
def test_sizes_that_it_cannot_divide_are_told(hidden: int, heads: int) -> None:
    sizes = {"hidden_size": hidden, "num_heads": heads, "num_kv_heads": heads}
    with pytest.raises(ValueError, match=rf"two heads or more and .* a multiple of 4 \* policy\.num_heads, got {hidden} with"):
        FreshPolicy(**sizes, induction_heads=True)


@pytest.mark.parametrize(("hidden", "heads"), [(8, 2), (24, 2), (24, 3)])
def test_the_smallest_sizes_can_be_built(hidden: int, heads: int) -> None:
    sizes = {"hidden_size": hidden, "num_heads": heads, "num_kv_heads": heads, "num_layers": 2}
    model = FreshPolicy(**sizes, induction_heads=True).build(["one two three"]).model
    assert all(parameter.isfinite().all() for parameter in model.parameters())
