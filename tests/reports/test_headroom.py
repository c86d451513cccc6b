"""The headroom study's arithmetic: signal against noise where both are known, its gradients, and its paired table."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support.fixtures import LengthReward, make_module, make_stage, tiny_policy

from oar_lightning.common.randomness import derive_seed
from oar_lightning.credit.gates import BilevelGate
from oar_lightning.credit.scorers import Position, Uniform
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.slots import Slot, UpdatePlan

FOLDER = Path(__file__).parents[2] / "reports" / "headroom"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"headroom_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # NamedTuple and dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


measure, compare = load("measure"), load("compare")


def blocks(noise: dict[str, float], signal: float = 1.0, size: int = 4000) -> tuple[list[dict[str, Any]], torch.Tensor]:
    """Sums of 64 gradients that are one mean plus noise of a known size, each method's ten times larger than the one before."""
    generator = torch.Generator().manual_seed(0)
    mean = signal * torch.randn(size, generator=generator)
    made = []
    for _ in range(8):
        sums: dict[str, Any] = {}
        for i, (name, sigma) in enumerate(noise.items()):
            g = 10.0**i * (mean + sigma * torch.randn(8, size, generator=generator))
            g[:, :10] = 0.0  # a token that no text holds
            sums[name] = (g.sum(0), g.square().sum(0))
        made.append({"batches": 8, "sums": sums, "facts": {}})
    return made, mean[10:]


def test_signal_shares_are_those_of_known_noise_whatever_the_scale() -> None:
    noise = {"uniform": 5.0, "quiet": 1.0, "noisy": 20.0}
    made, mean = blocks(noise)
    found = measure.jackknife(made)
    for name, sigma in noise.items():
        shares = mean.square() / (mean.square() + sigma**2)
        assert found[name]["adam"][0] == pytest.approx(float(shares.mean()), abs=0.003)
        raw = float(mean.square().sum() / (mean.square() + sigma**2).sum())
        assert found[name]["raw"][0] == pytest.approx(raw, abs=0.003)
        value, low, high = found[name]["raw"]
        assert abs(value - raw) < high - low < 0.05, "the interval is about as wide as the error"


def test_noise_alone_has_no_signal() -> None:
    made, _ = blocks({"uniform": 5.0}, signal=0.0)
    for value, low, high in measure.jackknife(made)["uniform"].values():
        assert low < 0 < high
        assert abs(value) < 0.002


@pytest.mark.parametrize("scorer", [Uniform(), Position("late")])
def test_a_methods_gradient_is_that_of_training(scorer: Any) -> None:
    policy = tiny_policy()
    stage = make_stage(policy, LengthReward())
    update = UpdatePlan(problems=2, group_size=4, microbatches=1)
    module: PolicyOptimization = make_module(policy, scorer, update=update)
    problems = tuple(ChainProblems(ChainTask())[i] for i in range(2))
    module.experience = module.collector.collect(problems, 0).experience
    loss = module.training_step(Slot(problems=problems, rollout=0, inner_epoch=0, minibatch=0, microbatch=0), 0)
    assert loss is not None
    loss.backward()
    expected = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in policy.model.parameters()])
    assert expected.abs().sum() > 0

    method = module.method
    settings = SimpleNamespace(method=method)
    seeds = [derive_seed(0, "rollout", 0, i) for i in range(2)]
    rollouts = stage(policy.model, problems, 4, method.sampling, seeds, 0)
    assert torch.equal(rollouts.token_ids, module.experience.rollouts.token_ids)
    setup = measure.Setup(policy.model, stage, settings, {"method": (scorer, BilevelGate())})
    torch.testing.assert_close(measure.gradients(setup, rollouts)["method"], expected, rtol=1e-4, atol=1e-7)


def test_differences_are_paired_by_seed_at_each_methods_best_rate() -> None:
    runs = {
        ("grpo", 1e-3): {0: 0.50, 1: 0.60, 2: 0.70},
        ("grpo", 1e-4): {0: 0.20},
        ("oracle", 1e-3): {0: 0.10},
        ("oracle", 3e-4): {0: 0.60, 1: 0.72, 2: 0.80, 3: 0.9},
    }
    assert compare.best_rates(runs) == {"grpo": 1e-3, "oracle": 3e-4}
    text = compare.tables(runs, "grpo")
    # differences 10, 12, 10: mean 10.667, standard deviation 1.1547, t(2) = 4.3027
    assert "| oracle | 0.0003 | 3 | 10.7 [7.8, 13.5] | +10.0, +12.0, +10.0 |" in text
    assert "| oracle | 0.001 | 0 | 10.0 |" in text
    with pytest.raises(SystemExit, match="share no seed"):
        compare.best_rates({("grpo", 1e-3): {0: 0.5}, ("grpo", 1e-4): {1: 0.5}})


def test_an_interval_by_hand() -> None:
    # 1, 2, 3, 4, 5: mean 3, s / sqrt(5) = 0.70711, t(4) = 2.77645
    assert compare.with_interval([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((3.0, 3 - 1.96325, 3 + 1.96325), abs=1e-4)
