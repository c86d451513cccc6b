"""A fresh policy: sizes, seed and the tokenizer that is trained with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oar_lightning.policy.fresh import FreshPolicy
from oar_lightning.policy.pretrained import Policy


def count_parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


TEXTS = ["Ann has 12 pens. Ann buys 3.\n", "So we get 12+3=15 pens.\nThe answer is \\boxed{15}."] * 10
TINY = FreshPolicy(hidden_size=16, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=24, vocab_size=300)


@pytest.fixture(scope="module")
def tiny() -> Policy:
    return TINY.build(TEXTS)


def logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids).logits


def some_ids(policy: Policy) -> torch.Tensor:
    return torch.randint(2, len(policy.tokenizer), (3, 11), generator=torch.Generator().manual_seed(0))


def test_a_fresh_policy_is_its_seed(tiny: Policy) -> None:
    state = torch.get_rng_state()
    again = TINY.build(TEXTS)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(tiny.model.parameters(), again.model.parameters(), strict=True))
    other = FreshPolicy(**{**vars(TINY), "seed": 1}).build(TEXTS)
    assert not torch.equal(logits(other.model, some_ids(tiny)), logits(tiny.model, some_ids(tiny)))


def test_the_fresh_tokenizer_reads_digits_one_by_one_and_writes_every_text(tiny: Policy) -> None:
    ids = tiny.tokenizer("15+1234", add_special_tokens=False).input_ids
    assert [tiny.tokenizer.decode([i]) for i in ids] == ["1", "5", "+", "1", "2", "3", "4"]
    assert 256 < len(tiny.tokenizer) <= 300
    assert len(set(tiny.tokenizer.all_special_ids)) == 2


def test_parameter_count(tiny: Policy) -> None:
    """By hand: tied embeddings, per layer q with bias, shared k and v with bias, o, a gated MLP, two norms; a last norm."""
    h, kv, f = 16, 8, 24
    layer = (h * h + h) + 2 * (h * kv + kv) + h * h + 3 * h * f + 2 * h
    assert count_parameters(tiny.model) == len(tiny.tokenizer) * h + 2 * layer + h


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"hidden_size": 20, "num_heads": 4}, r"policy\.hidden_size must be a multiple of 2 \* policy\.num_heads.*got 20"),
        ({"vocab_size": 259}, r"policy\.vocab_size is room for 256 bytes.*>= 260, got 259"),
        ({"num_heads": 4, "num_kv_heads": 3}, r"policy\.num_kv_heads must divide policy\.num_heads, got 3 with num_heads=4"),
    ],
)
def test_bad_sizes_name_their_key(arguments: dict[str, int], pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        FreshPolicy(**arguments)
