"""Half precision is for weights and passes of the model, not for the numbers around them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import HalfPrecision, MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from support.fixtures import TASK

from oar_lightning import ListedProblems, PretrainedPolicy, Settings, train
from oar_lightning.common.config_check import ConfigError
from oar_lightning.data.chain.task import ChainProblems
from oar_lightning.distributed.deepspeed_strategy import ZeroRedundancy
from oar_lightning.training.precision import (
    check_trained,
    check_update_dtype,
    float32_by_default,
    precision_of,
    warn_of_slow_products,
)
from oar_lightning.training.slots import UpdatePlan


def test_random_numbers_keep_their_digits_with_half_precision_weights() -> None:
    trainer = SimpleNamespace(precision_plugin=HalfPrecision("bf16-true"))
    with trainer.precision_plugin.forward_context():
        assert len(torch.rand(5000).unique()) < 1000, "what Lightning alone would draw tokens with"
    with precision_of(trainer):
        assert len(torch.rand(5000).unique()) > 4900
    assert torch.get_default_dtype() == torch.float32


def test_mixed_precision_stays_in_force() -> None:
    trainer = SimpleNamespace(precision_plugin=MixedPrecision("bf16-mixed", "cpu"))
    a = torch.ones(2, 2)
    with precision_of(trainer):
        assert (a @ a).dtype == torch.bfloat16
    assert (a @ a).dtype == torch.float32


def test_the_former_default_comes_back_after_an_error() -> None:
    @float32_by_default()
    def fails() -> None:
        raise ArithmeticError

    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ArithmeticError):
            fails()
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_adam_makes_float16_weights_nan() -> None:
    """Why they are refused."""
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = torch.optim.AdamW([weight], lr=1e-3)
    weight.grad = torch.tensor([0.0, 1e-2], dtype=torch.float16)
    optimizer.step()
    assert weight.isnan().tolist() == [True, False]


FLOAT16 = "the weights that are trained would be float16"


@pytest.mark.parametrize(
    ("dtype", "precision", "expected"),
    [
        ("float16", "32-true", rf"policy\.dtype=float16: {FLOAT16}.* set policy\.dtype=bfloat16 or policy\.dtype=float32"),
        ("float16", "bf16-mixed", rf"policy\.dtype=float16: {FLOAT16}"),
        ("float32", "16-true", rf"trainer\.precision=16-true: {FLOAT16}.* set trainer\.precision=bf16-mixed, bf16-true or 32-"),
    ],
)
def test_float16_weights_are_not_trained(dtype: Any, precision: Any, expected: str, tmp_path: Path) -> None:
    problems = ListedProblems([ChainProblems(TASK)[0]])
    settings = Settings(PretrainedPolicy("chain", dtype=dtype), problems, {"own": problems})
    with pytest.raises(ConfigError, match=expected):
        train(settings, 1, tmp_path, precision=precision, accelerator="cpu", enable_progress_bar=False)


def of(strategy: type, precision: str) -> Any:
    plain = object.__new__(strategy)
    if strategy is ZeroRedundancy:
        plain.stage, plain.cluster_environment = 2, None
    return SimpleNamespace(strategy=plain, precision=precision)


def test_what_becomes_of_weights_is_what_counts() -> None:
    """Lightning casts to bfloat16 or float64 what was loaded in float16; adapters on a float16 policy are float32."""
    model = torch.nn.Linear(2, 2).half()
    for precision in ("bf16-true", "64-true"):
        check_trained(model, of(SingleDeviceStrategy, precision), "float16")
    model.bias.data = model.bias.data.float()
    model.weight.requires_grad_(False)
    check_trained(model, of(SingleDeviceStrategy, "32-true"), "float16")


def test_deepspeed_moves_float32_copies() -> None:
    with pytest.raises(ConfigError):
        check_trained(torch.nn.Linear(2, 2), of(SingleDeviceStrategy, "16-true"), "float32")
    check_trained(torch.nn.Linear(2, 2), of(ZeroRedundancy, "16-true"), "float32")


HALF = UpdatePlan(dtype="bfloat16")


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true", "64-true"])
def test_an_update_has_no_dtype_beside_another_precision(precision: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"update\.dtype=bfloat16 .* trainer\.precision={precision} .* leave one of them out"
    ):
        check_update_dtype(HALF, precision)
    with pytest.raises(ConfigError, match=r"update\.dtype=float32 "):
        check_update_dtype(UpdatePlan(dtype="float32"), precision)
    check_update_dtype(UpdatePlan(), precision)


@pytest.mark.parametrize(
    ("capabilities", "device", "told"),
    [({"avx512_f": True, "avx512_bf16": False}, "cpu", True), ({"bf16": True}, "cpu", False), ({}, "cuda", False)],
)
def test_a_processor_without_products_in_bfloat16_is_told(
    capabilities: dict[str, bool],
    device: str,
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    warn_of_slow_products(HALF, torch.device(device))
    assert [
        message.startswith("update.dtype=bfloat16: this processor has no products of it") for message in caplog.messages
    ] == (told * [True])
