"""Derived seeds and isolated random states."""

from __future__ import annotations

import pytest
import torch

from oar_lightning.common.randomness import derive_seed, generator, isolated_rng


def test_seeds_depend_on_all_parts_and_their_borders() -> None:
    parts = [(), (0,), (1,), (0, 1), (1, 0), ("01",), (0, 1, 2), (0, 12), (0, "rollout"), (0, "rollout", 3), (None,), (0.5,)]
    seeds = [derive_seed(*p) for p in parts]
    assert len(set(seeds)) == len(parts)
    assert all(0 <= s < 2**63 for s in seeds)
    assert derive_seed(0, "rollout", 3) == derive_seed("0", "rollout", "3")


def test_seeds_are_the_same_everywhere() -> None:
    """Python's own hash of a text differs from process to process; these numbers are what runs are repeated by."""
    assert derive_seed(7, "noise", "é") == 685548966910563495


def test_generators() -> None:
    draws = [torch.randn(4, generator=generator(*p)) for p in ((0, "a"), (0, "a"), (0, "b"))]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_a_generator_leaves_the_global_state_alone() -> None:
    state = torch.get_rng_state()
    torch.randn(3, generator=generator(1))
    assert torch.equal(torch.get_rng_state(), state)


def test_isolated_rng_is_seeded_and_puts_the_state_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with isolated_rng(0, "evaluation"):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(2), expected)
    with isolated_rng(0, "evaluation"):
        assert torch.equal(torch.rand(3), inside)
    with isolated_rng(1, "evaluation"):
        assert not torch.equal(torch.rand(3), inside)


def test_isolated_rng_puts_the_state_back_after_an_error() -> None:
    def fails() -> None:
        with isolated_rng(0):
            torch.rand(1)
            raise RuntimeError

    state = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        fails()
    assert torch.equal(torch.get_rng_state(), state)
