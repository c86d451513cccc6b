"""Ranges of plain keys, of Lightning's Trainer and of torch's optimizers. What is refused: system/test_mistakes.py."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.ranges import refusal
from oar_lightning.training.train import DECIDED
from oar_lightning.wiring.ranges import OF_OPTIMIZERS, SET_HERE, check_ranges

VALUES = {"betas": [(0.0, 0.0), (0.9, 0.999), (1.0, 0.9), (0.9, -0.1)]}
NUMBERS = [0, 1e-3, 2.0, -1e-3]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop, torch.optim.NAdam])
def test_torch_refuses_the_same(kind: Any) -> None:
    weights = [torch.nn.Parameter(torch.zeros(1))]
    known = kind(weights).defaults
    for name in OF_OPTIMIZERS.keys() & known:
        for value in VALUES.get(name, NUMBERS):
            refused = False
            try:
                kind(weights, **{name: value})
            except ValueError:
                refused = True
            assert refused == (refusal(name, value, OF_OPTIMIZERS[name]) is not None), (name, value)
    assert refusal("lr", math.inf, OF_OPTIMIZERS["lr"]), "torch takes it, and no step is finite"


def test_another_library_s_optimizer_has_its_own_ranges() -> None:
    for target, refused in (("torch.optim.AdamW", True), ("other.Optimizer", False)):
        cfg = OmegaConf.create({"trainer": {}, "data": {}, "optimizer": {"_target_": target, "lr": -1}})
        if refused:
            with pytest.raises(ConfigError, match=r"optimizer\.lr must be finite and >= 0, got -1"):
                check_ranges(cfg)
        else:
            check_ranges(cfg)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 2**32}, r"seed must be in \[0, 4294967296\), got 4294967296"),
        ({"optimizer": {"_target_": "torch.optim.AdamW", "betas": [0.9]}}, r"betas must be two numbers in \[0, 1\), e\.g\."),
    ],
)
def test_what_libraries_would_refuse_late_or_in_other_words(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_ranges(OmegaConf.create({"trainer": {}, "data": {}, "optimizer": {}} | settings))


def test_lists_of_devices_pass() -> None:
    for devices in ([0, 1], "auto", 2, None):
        check_ranges(OmegaConf.create({"trainer": {"devices": devices}, "data": {}, "optimizer": {}}))


def test_questions_that_tell_an_answer_are_for_demonstrations() -> None:
    data = {"name": "chain", "chain": {"hints": 0.5}, "train": None}
    check_ranges(OmegaConf.create({"task": "warm_start", "trainer": {}, "data": data}))
    check_ranges(OmegaConf.create({"task": "train", "trainer": {}, "data": data | {"chain": {"hints": 0.0}}}))
    with pytest.raises(ConfigError, match=r"data\.chain\.hints=0\.5: .* task=warm_start; set it to 0"):
        check_ranges(OmegaConf.create({"task": "train", "trainer": {}, "data": data}))


def test_a_program_refuses_what_the_command_does() -> None:
    """Loggers are an argument of `train`; a key of the command."""
    assert SET_HERE.keys() - {"logger"} <= set(DECIDED)
