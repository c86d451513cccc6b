"""Whether the trainer is for as many ranks as srun or torchrun has started."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from oar_lightning.common.config_check import ConfigError
from oar_lightning.wiring.library_settings import check_tasks

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
