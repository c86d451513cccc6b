"""The warm start: which demonstrations it leaves out, and what its messages name."""

from __future__ import annotations

import torch
from support.fixtures import fit, make_warm_start, tiny_policy

from oar_lightning.policy.out_of_memory import advice


def test_demonstrations_of_more_tokens_than_positions_are_left_out_and_counted() -> None:
    policy = tiny_policy()
    policy.model.config.max_position_embeddings = 53
    (short, limited, all_kept) = (
        fit(module, 1).rows[1]["too_long_frac"]
        for module in (make_warm_start(policy), make_warm_start(tiny_policy(), max_tokens=53), make_warm_start(tiny_policy()))
    )
    assert short == limited > all_kept == 0


def test_what_did_not_fit_is_told_with_the_keys_of_the_warm_start() -> None:
    said = advice(torch.OutOfMemoryError("full"), make_warm_start(tiny_policy()).memory_bounds)
    assert "supervised.batch_size" in said
    assert "supervised.max_tokens" in said
    assert "update." not in said
