"""Sums of a memory plan: bytes of one device from sizes, precision and sharding, without running a model."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oar_lightning.planning.policy import PolicySize

MEMORY_PHASES = ("rollout", "scoring", "log-probabilities", "update", "optimizer step")
"""Phases of a training step; memory of one phase is free again in the next."""
COLLECTING = MEMORY_PHASES[:3]
Cost = Callable[[int], float]
"""Function from tokens to bytes."""

ZERO_BUCKET = 2 * 10**8
"""Elements of DeepSpeed's two communication buffers as Lightning sets them (`allgather_bucket_size`, `reduce_bucket_size`)."""
ZERO_LIVE = 10**9
"""The most parameters that ZeRO-3 keeps gathered (`stage3_max_live_parameters`)."""


@dataclass(frozen=True)
class Item:
    """Bytes of one device, and the phases in which they are held."""

    name: str
    bytes: float
    phases: Sequence[str] = MEMORY_PHASES


@dataclass(frozen=True)
class Plan:
    """All items that a device holds."""

    items: Sequence[Item]

    def of(self, phase: str) -> float:
        """Bytes held in a phase."""
        return sum(item.bytes for item in self.items if phase in item.phases)

    @property
    def peak(self) -> float:
        return max(map(self.of, MEMORY_PHASES))

    def without(self, name: str, phase: str) -> float:
        """Bytes held in a phase, without one item."""
        return sum(item.bytes for item in self.items if phase in item.phases and item.name != name)


@dataclass(frozen=True)
class Sharding:
    """The distribution of a model over ranks.

    `stage`: of ZeRO; 0 without ZeRO. `buckets`: whether gradients are copied for communication (DDP without
    `gradient_as_bucket_view`).
    """

    ranks: int = 1
    stage: int = 0
    buckets: bool = False
    offload_optimizer: bool = False
    offload_parameters: bool = False

    @property
    def zero(self) -> bool:
        return self.stage > 0

    def fraction(self, from_stage: int) -> float:
        """The fraction that one rank holds of what ZeRO shards from a stage on."""
        return 1 / self.ranks if self.stage >= from_stage else 1.0

    @staticmethod
    def of(trainer: Mapping[str, Any]) -> Sharding:
        """The sharding that `trainer.strategy`, `devices` and `num_nodes` describe.

        Raises:
            ValueError: for a number of devices that depends on the machine, and for an unknown strategy.
        """
        devices, nodes = trainer.get("devices", 1), int(trainer.get("num_nodes", 1))
        count = len(devices) if isinstance(devices, Sequence) and not isinstance(devices, str) else devices
        if not isinstance(count, int) or count < 1:
            raise ValueError(
                f"trainer.devices={devices} depends on the machine; a plan needs the number of devices of a node, e.g. "
                "trainer.devices=8"
            )
        ranks = count * nodes
        strategy = trainer.get("strategy") or "auto"
        settings = strategy if isinstance(strategy, Mapping) else {}
        name = str(settings.get("_target_", strategy)).lower()
        if "deepspeed" in name:
            # e.g. deepspeed_stage_3_offload; Lightning's own default is stage 2
            named_stage = next((int(c) for c in name if c in "123"), 2)
            offload = "offload" in name
            return Sharding(
                ranks,
                int(settings.get("stage") or named_stage),
                False,
                bool(settings.get("offload_optimizer", offload)),
                bool(settings.get("offload_parameters", offload and named_stage == 3)),
            )
        if "ddp" in name or "distributeddataparallel" in name or (name == "auto" and ranks > 1):
            return Sharding(ranks, buckets=not settings.get("gradient_as_bucket_view", False))
        if name not in ("auto", "single_device"):
            raise ValueError(f"trainer.strategy={name}: a plan knows auto, ddp and deepspeed (ZeRO 1 to 3) only")
        return Sharding()


def weight_items(
    size: PolicySize,
    sharding: Sharding,
    states: int = 2,
    masters: bool = False,
    whole_copy: bool = False,
    reference: float = 0.0,
) -> list[Item]:
    """Memory of weights, gradients and optimizer states, and of the buffers for communication and for the optimizer's step.

    `states`: numbers that the optimizer keeps for each trained parameter (AdamW: 2), in the parameter's dtype. `masters`: the
    states are float32, and there is a float32 copy of the parameters (DeepSpeed with 16 bits). `whole_copy`: the optimizer's
    step allocates one temporary for all parameters (`foreach`), otherwise two of the largest parameter. `reference`: bytes of
    the frozen reference model.
    """
    element = size.trained_bytes / size.trained if size.trained else 4.0
    of_states = 4.0 if masters else element
    weights = 0.0 if sharding.offload_parameters else size.bytes * sharding.fraction(3)
    optimizer = size.trained * (of_states * states + 4.0 * masters) * sharding.fraction(1)
    temporary = size.trained * of_states * sharding.fraction(1) if whole_copy else 2 * of_states * size.largest
    gradients = size.trained_bytes * sharding.fraction(2)
    offloaded = sharding.offload_optimizer
    items = [
        Item("weights", weights),
        Item("reference model", reference),
        Item("gradients", 0.0 if offloaded and sharding.stage >= 2 else gradients),
        Item("optimizer states", 0.0 if offloaded else optimizer),
        Item("optimizer's temporaries", 0.0 if offloaded else temporary, ("optimizer step",)),
        Item("DDP's buckets", size.trained_bytes if sharding.buckets else 0.0),
        Item(
            "ZeRO's buckets",
            2 * min(size.trained, ZERO_BUCKET) * element if sharding.zero else 0.0,
            ("update", "optimizer step"),
        ),
    ]
    if sharding.stage == 3:
        live = min(size.bytes, ZERO_LIVE * size.bytes / size.parameters)
        items += [Item("gathered weights", size.bytes - weights, COLLECTING), Item("gathered weights", live, ("update",))]
    return [item for item in items if item.bytes]


def through(cost: Callable[[int], float], low: int, high: int) -> Cost:
    """The straight line through two points of a cost."""
    at_low, at_high = cost(low), cost(high)
    slope = (at_high - at_low) / (high - low)
    return lambda x: at_high + slope * (x - high)


def piecewise(cost: Callable[[int], float], points: Sequence[int]) -> Cost:
    """Linear interpolation of a cost between `points` (in order), extrapolated beyond the outer points; a single point
    p gives the line through p - 1 and p. A line is computed when it is first needed."""
    ends = list(itertools.pairwise(points)) or [(points[0] - 1, points[0])]
    lines = [functools.cache(functools.partial(through, cost, *pair)) for pair in ends]
    return lambda x: lines[min(bisect.bisect_left(points, x, 1), len(lines)) - 1]()(x)


def affordable(cost: Cost, room: float, least: int, most: int, unit: int = 256) -> int | None:
    """The largest budget that costs at most `room`: `least`, a multiple of `unit`, or `most`; None where `least` costs more.

    `cost` must not decrease with the budget.
    """
    if cost(least) > room:
        return None
    if cost(most) <= room:
        return max(least, most)
    low, high = least // unit, most // unit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle * unit) <= room else (low, middle)
    return max(least, low * unit)
