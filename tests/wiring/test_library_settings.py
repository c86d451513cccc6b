"""Whether the trainer is for as many ranks as srun or torchrun has started."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from omegaconf import DictConfig, OmegaConf

from oar_lightning.common.config_check import ConfigError
from oar_lightning.wiring.library_settings import BY_HAND, check_tasks, try_trainer

SRUN = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_NAME": "train"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("SLURM_", "TORCHELASTIC_"))]:
        monkeypatch.delenv(name)


def check(monkeypatch: pytest.MonkeyPatch, launched: dict[str, str], devices: int, nodes: int) -> None:
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    check_tasks(SimpleNamespace(num_devices=devices, num_nodes=nodes))


@pytest.mark.parametrize("precision", [None, 32, "32", "bf16", "bf16-mixed", "bf16-true", "16-true", "64-true"])
def test_the_trainer_computes_in_the_precision_that_is_asked_for(precision: object) -> None:
    try_trainer(trainer_of(precision))


@pytest.mark.parametrize("precision", [16, "16-mixed"])
def test_a_precision_that_lightning_would_replace_is_refused(precision: object) -> None:
    with pytest.raises(ConfigError, match=rf"trainer\.precision={precision}: .* set trainer\.precision=bf16-mixed"):
        try_trainer(trainer_of(precision))


def trainer_of(precision: object) -> DictConfig:
    settings = {"_target_": "lightning.Trainer", "accelerator": "cpu", "devices": 1, "precision": precision}
    return OmegaConf.create({"trainer": settings})


@pytest.mark.parametrize(
    ("launched", "devices", "nodes"),
    [
        ({}, 2, 1),
        (SRUN | {"SLURM_NTASKS": "1", "SLURM_NNODES": "1"}, 1, 1),
        (SRUN | {"SLURM_NTASKS": "16", "SLURM_NNODES": "2"}, 8, 2),
        (TORCHRUN | {"WORLD_SIZE": "16", "GROUP_WORLD_SIZE": "2"}, 8, 2),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2"}, 1, 1),  # not started by srun
        (SRUN | {"SLURM_JOB_NAME": "interactive", "SLURM_NTASKS": "2"}, 1, 1),
    ],
)
def test_as_many_ranks_as_tasks(launched: dict[str, str], devices: int, nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, launched, devices, nodes)


def test_other_nodes_that_nothing_has_started_ranks_on_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BY_HAND:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        ConfigError, match=r"trainer\.num_nodes=2: nothing has started .* NODE_RANK, MASTER_ADDR and MASTER_PORT"
    ):
        check(monkeypatch, {}, 1, 2)
    check(monkeypatch, {"MASTER_ADDR": "10.0.0.1", "NODE_RANK": "1"}, 1, 2)


@pytest.mark.parametrize(
    ("launched", "devices", "nodes", "says"),
    [
        (SRUN | {"SLURM_NTASKS": "2"}, 1, 1, "choose a trainer of several ranks, e.g. trainer=ddp; set trainer.devices=2"),
        (SRUN | {"SLURM_NTASKS": "1"}, 2, 1, "srun has started 1 ranks on 1 nodes, and this run is for 2 on 1"),
        (SRUN | {"SLURM_NTASKS": "2", "SLURM_NNODES": "2"}, 2, 1, "set trainer.devices=1 trainer.num_nodes=2"),
        (SRUN | {"SLURM_NTASKS": "3", "SLURM_NNODES": "2"}, 2, 2, "start as many on each node, by --ntasks-per-node"),
        (TORCHRUN | {"WORLD_SIZE": "2"}, 1, 1, "torchrun has started 2 ranks .* or --nproc-per-node and --nnodes to these"),
    ],
)
def test_another_number_is_refused_with_the_remedy(
    launched: dict[str, str], devices: int, nodes: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=says):
        check(monkeypatch, launched, devices, nodes)
