"""Attention of few queries as two products, against torch's own in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from oar_lightning.common.randomness import generator
from oar_lightning.policy.attention import FEW_QUERIES, attend_by_products, products_are_faster


def tensors(
    rows: int = 3, queries: int = 2, heads: int = 6, groups: int = 2, width: int = 5, size: int = 4
) -> list[torch.Tensor]:
    made = generator("attention")
    shapes = [(rows, queries, heads, size), (rows, groups, width, size), (rows, groups, width, size)]
    return [torch.randn(shape, generator=made, dtype=torch.float64) for shape in shapes]


def reference(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    out = scaled_dot_product_attention(query.transpose(1, 2), keys, values, mask, enable_gqa=True)
    return out.transpose(1, 2)


@pytest.mark.parametrize("queries", [1, 2, FEW_QUERIES])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("kind", ["none", "bool", "float", "one mask for all rows"])
def test_computes_attention(queries: int, groups: int, kind: str) -> None:
    query, keys, values = tensors(queries=queries, groups=groups)
    seen = torch.rand(1 if kind.startswith("one") else 3, 1, queries, 5, generator=generator("seen")) < 0.6
    seen[..., 0] = True
    mask = None if kind == "none" else seen
    if kind == "float":
        mask = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    torch.testing.assert_close(attend_by_products(query, keys, values, mask), reference(query, keys, values, mask))


def test_gradients_are_those_of_attention() -> None:
    seen = torch.tensor([True, False, True, True, False]).expand(3, 1, 2, 5)
    gradients = []
    for attend in (attend_by_products, reference):
        leaves = [tensor.requires_grad_() for tensor in tensors()]
        attend(*leaves, seen).square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(*gradients)


def test_keys_of_a_larger_storage_are_read_in_place() -> None:
    query, keys, values = tensors(queries=1)
    roomy = torch.full((3, 2, 9, 4), torch.nan, dtype=torch.float64)
    roomy[:, :, :5] = keys
    torch.testing.assert_close(attend_by_products(query, roomy[:, :, :5], values, None), reference(query, keys, values, None))


@pytest.mark.parametrize(
    ("shape", "faster"), [((64, 1, 4, 8), True), ((64, 4, 4, 8), True), ((63, 4, 4, 8), False), ((64, 5, 4, 8), False)]
)
def test_serves_few_queries(shape: tuple[int, ...], faster: bool) -> None:
    assert products_are_faster(torch.zeros(shape)) is faster
    assert not products_are_faster(torch.zeros(shape, device="meta"))
