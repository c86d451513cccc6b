"""The sums of a plan, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.composing import composed

from oar_lightning.planning import PlanConfig
from oar_lightning.planning.config import CARDS
from oar_lightning.planning.memory import Item, Plan, Sharding, affordable, piecewise, through, weight_items
from oar_lightning.planning.policy import PolicySize
from oar_lightning.wiring.config import plain

FULL = PolicySize(1000, 0, 4000, 0, 100, 8)
LORA = PolicySize(10, 1000, 40, 2000, 5, 8)
HALF = PolicySize(1000, 0, 2000, 0, 100, 8)


def held(size: PolicySize, sharding: Sharding, **options: object) -> dict[str, float]:
    items = weight_items(size, sharding, **options)  # type: ignore[arg-type]
    return {f"{item.name}@{len(item.phases)}" if item.name == "gathered weights" else item.name: item.bytes for item in items}


def test_one_device_holds_everything() -> None:
    assert held(FULL, Sharding()) == {
        "weights": 4000,
        "gradients": 4000,
        "optimizer states": 8000,
        "optimizer's temporaries": 800,
    }
    assert held(FULL, Sharding(), whole_copy=True)["optimizer's temporaries"] == 4000
    assert "optimizer states" not in held(FULL, Sharding(), states=0)
    assert held(FULL, Sharding(), reference=4000.0)["reference model"] == 4000


def test_frozen_weights_have_no_gradients_and_no_states() -> None:
    assert held(LORA, Sharding()) == {
        "weights": 2040,
        "gradients": 40,
        "optimizer states": 80,
        "optimizer's temporaries": 40,
    }


def test_ddp_divides_nothing() -> None:
    assert held(FULL, Sharding(4, buckets=True)) == held(FULL, Sharding()) | {"DDP's buckets": 4000}


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "states"), [(1, 2000, 2000, 3000), (2, 2000, 500, 3000), (3, 500, 500, 3000)]
)
def test_zero_divides_what_its_stage_divides(stage: int, weights: float, gradients: float, states: float) -> None:
    """16-bit weights with float32 copies, first and second moments beside: 16 bytes a parameter in all."""
    found = held(HALF, Sharding(4, stage), masters=True)
    assert (found["weights"], found["gradients"], found["optimizer states"]) == (weights, gradients, states)
    assert held(HALF, Sharding(1, stage), masters=True)["optimizer states"] + 2000 + 2000 == 16 * 1000
    assert ("gathered weights@3" in found) == (stage == 3)
    if stage == 3:
        assert found["weights"] + found["gathered weights@3"] == 2000
        assert found["gathered weights@1"] == 2000  # all of so small a model stays gathered


@pytest.mark.parametrize(("stage", "gigabytes"), [(1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_zero_papers_example(stage: int, gigabytes: float) -> None:
    """arXiv 1910.02054, figure 1: 7.5 billion parameters on 64 devices, mixed-precision Adam with K = 12."""
    parameters = 7_500_000_000
    size = PolicySize(parameters, 0, 2 * parameters, 0, 1, 8)
    found = held(size, Sharding(64, stage), masters=True)
    states = found["weights"] + found["gradients"] + found["optimizer states"]
    share = {1: 2 + 2 + 12 / 64, 2: 2 + (2 + 12) / 64, 3: (2 + 2 + 12) / 64}
    assert states == pytest.approx(parameters * share[stage])
    assert states / 1e9 == pytest.approx(gigabytes, abs=0.06)


def test_what_is_offloaded_is_not_on_the_device() -> None:
    found = held(HALF, Sharding(4, 3, offload_optimizer=True, offload_parameters=True), masters=True)
    assert not {"weights", "gradients", "optimizer states", "optimizer's temporaries"} & found.keys()


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ({"devices": 1}, Sharding()),
        ({"devices": 1, "strategy": "auto"}, Sharding()),
        ({"devices": 4, "num_nodes": 2, "strategy": "ddp"}, Sharding(8, buckets=True)),
        ({"devices": [0, 1]}, Sharding(2, buckets=True)),
        ({"devices": 8, "strategy": "deepspeed_stage_2"}, Sharding(8, 2)),
        ({"devices": 8, "strategy": "deepspeed_stage_2_offload"}, Sharding(8, 2, offload_optimizer=True)),
        ({"devices": 2, "strategy": "deepspeed_stage_3_offload"}, Sharding(2, 3, False, True, True)),
        (
            {"devices": 2, "strategy": {"_target_": "a.MyDeepSpeedStrategy", "stage": 3, "offload_optimizer": True}},
            Sharding(2, 3, offload_optimizer=True),
        ),
        (
            {"devices": 2, "strategy": {"_target_": "a.DDPStrategy", "gradient_as_bucket_view": True}},
            Sharding(2, buckets=False),
        ),
    ],
)
def test_strategies_are_read_off_the_trainer(trainer: dict[str, object], expected: Sharding) -> None:
    assert Sharding.of(trainer) == expected


@pytest.mark.parametrize("trainer", [{"devices": "auto"}, {"devices": -1}, {"devices": 1, "strategy": "fsdp"}])
def test_what_a_plan_cannot_know_is_said(trainer: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"trainer\.(devices=|strategy=fsdp)"):
        Sharding.of(trainer)


def test_a_phase_holds_its_own_items() -> None:
    plan = Plan((Item("weights", 10), Item("cache", 5, ("rollout",)), Item("pass", 7, ("update",))))
    assert (plan.of("rollout"), plan.of("update"), plan.of("scoring"), plan.peak) == (15, 17, 10, 17)
    assert plan.without("pass", "update") == 10


def test_the_largest_budget_that_fits() -> None:
    def cost(tokens: int) -> float:
        return 100 + 2 * tokens

    for room in (700, 1124, 2000, 5000, 9000):
        found = affordable(cost, room, 300, 4000, unit=256)
        assert found is not None
        assert cost(found) <= room
        assert found == 4000 or cost(found + 256) > room
    assert affordable(cost, 699, 300, 4000) is None
    assert affordable(cost, 800, 300, 4000) == 300  # no multiple of the unit, and yet it fits


def test_a_line_through_two_points() -> None:
    line = through(lambda n: 7 + 3 * n, 2, 4)
    assert [line(x) for x in (0, 4, 100)] == [7, 19, 307]


def test_straight_lines_from_point_to_point() -> None:
    asked: list[int] = []

    def cost(n: int) -> float:
        asked.append(n)
        return n**2

    line = piecewise(cost, [0, 2, 4, 10])
    assert [line(x) for x in (1, 2)] == [2, 4]
    assert sorted(set(asked)) == [0, 2]  # what is not asked for is not run
    assert [line(x) for x in (3, 7, 11)] == [10, 58, 114]
    assert piecewise(lambda n: 5.0, [3])(100) == 5


def test_cards() -> None:
    assert PlanConfig(card_gb="h100").card_bytes == CARDS["h100"] * 1e9
    assert PlanConfig(card_gb=24, reserve=0.25).usable_bytes == 18e9
    for bad in ({"card_gb": "h1000"}, {"card_gb": 0}, {"reserve": 1.0}, {"prompt_tokens": 0}, {"answer_tokens": 0}):
        with pytest.raises(ValueError, match=f"plan.{next(iter(bad))}"):
            PlanConfig(**bad)  # type: ignore[arg-type]


@pytest.mark.usefixtures("hydra_conf")
@pytest.mark.parametrize("name", sorted(path.stem for path in Path("conf/trainer").glob("*.yaml")))
def test_a_plan_knows_every_trainer_of_the_package(name: str) -> None:
    trainer = plain(composed(f"trainer={name}", "trainer.devices=2"))["trainer"]
    sharding = Sharding.of(trainer)
    assert sharding.ranks == 2
    assert (sharding.stage > 0) == name.startswith("deepspeed")
