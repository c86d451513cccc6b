"""Derived seeds."""

from __future__ import annotations

import torch

from oar_lightning.common.randomness import derive_seed, generator


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
