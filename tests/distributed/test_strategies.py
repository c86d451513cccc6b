"""What training asks of strategies: one adapter for each kind, refusal of the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy

from oar_lightning.distributed.deepspeed_checkpoint import Layout
from oar_lightning.distributed.deepspeed_strategy import ZeroRedundancy
from oar_lightning.distributed.strategies import StrategyAdapter, ZeroAdapter, adapt


def trainer_with(kind: type) -> Any:
    """A trainer whose strategy is of this class, without the set-up that needs several processes."""
    return SimpleNamespace(strategy=object.__new__(kind))


@pytest.mark.parametrize("kind", [DeepSpeedStrategy, FSDPStrategy])
def test_strategies_that_divide_the_model_in_other_ways_are_refused(kind: type) -> None:
    with pytest.raises(ValueError, match=rf"trainer\.strategy={kind.__name__} .* choose trainer=deepspeed_zero1"):
        adapt(trainer_with(kind))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_copies_of_a_process_are_refused_for_it_would_not_have_their_results(method: str) -> None:
    with pytest.raises(ValueError, match=rf"trainer\.strategy=ddp_{method} .* choose ddp, from a command or a script"):
        adapt(SimpleNamespace(strategy=DDPStrategy(start_method=method)))  # type: ignore[arg-type]


def test_zero_has_its_own_adapter() -> None:
    engine = SimpleNamespace(skipped_steps=3, fp16_enabled=lambda: False, get_global_grad_norm=lambda: torch.tensor(1.5))
    strategy = SimpleNamespace(stage=3, world_size=4, model=engine)
    zero = ZeroAdapter(strategy)  # type: ignore[arg-type]
    assert issubclass(ZeroRedundancy, DeepSpeedStrategy), "adapt asks for it first"
    assert zero.layout == Layout(3, 4)
    assert zero.shards_weights
    assert not zero.ranks_may_differ_in_passes
    assert zero.needs_each_loss
    assert zero.judges_gradients
    assert (zero.gradient_norm(), zero.skipped_steps()) == (1.5, 3)
    assert zero.loss_factor(5) == 25, "averaged over micro-batches by Lightning and by DeepSpeed"


@pytest.mark.parametrize(("scaler", "scales"), [(None, False), (torch.amp.GradScaler("cpu"), True)])
def test_other_strategies_hold_all_weights_and_gradients(scaler: Any, scales: bool) -> None:
    plugin = MixedPrecision("16-mixed" if scales else "bf16-mixed", "cpu", scaler)
    one = StrategyAdapter(SimpleNamespace(precision_plugin=plugin))  # type: ignore[arg-type]
    assert (one.layout, one.gradient_norm(), one.skipped_steps(), one.shards_weights) == (None, None, None, False)
    assert one.scales_losses is scales
    assert one.loss_factor(5) == 5
