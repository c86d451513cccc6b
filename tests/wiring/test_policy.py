"""A policy of a task without a Trainer has the weights that a Trainer would give it."""

from __future__ import annotations

import pytest
import torch

from oar_lightning.common.config_check import ConfigError
from oar_lightning.policy.casting import precision_name
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.wiring.device import mixed_precision
from oar_lightning.wiring.policy import load_policy

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("precision", "weights", "products"),
    [
        (None, torch.float32, torch.float32),
        ("32-true", torch.float32, torch.float32),
        ("bf16-true", torch.bfloat16, torch.bfloat16),
        ("64-true", torch.float64, torch.float64),
        ("bf16-mixed", torch.float32, torch.bfloat16),
        ("bf16", torch.float32, torch.bfloat16),
    ],
)
def test_weights_and_passes_are_in_the_trainers_precision(precision, weights: torch.dtype, products: torch.dtype) -> None:
    policy = load_policy(PretrainedPolicy("chain"), "evaluate", CPU, precision)
    assert {p.dtype for p in policy.model.parameters()} == {weights}
    assert {b.dtype for b in policy.model.buffers()} == {torch.float32}, "frequencies of rotary positions"
    assert not any(p.requires_grad for p in policy.model.parameters())
    with mixed_precision(precision, CPU):
        weight = policy.model.lm_head.weight
        assert (weight @ weight.T).dtype == products


def test_a_precision_that_only_a_trainer_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.precision=transformer-engine needs a Trainer, .*task=score.* bf16-true"):
        load_policy(PretrainedPolicy("chain"), "score", CPU, "transformer-engine")


def test_names_are_those_that_lightning_makes_of_them() -> None:
    from lightning.fabric.plugins.precision import precision as lightnings

    for alias, name in lightnings._PRECISION_INPUT_STR_ALIAS_CONVERSION.items():
        assert precision_name(alias) == name
    assert precision_name(16) == "16-mixed"
