"""Settings that only a library can judge: they are tried on it, before anything slow."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.pytorch.plugins.environments import LightningEnvironment, LSFEnvironment, MPIEnvironment
from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.culprit import explained
from oar_lightning.distributed.launch import by_torchrun, started_tasks
from oar_lightning.policy.casting import precision_name
from oar_lightning.wiring.lightning_options import trainer_options

BY_HAND = ("NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables of which some are set where ranks are started node by node (and by Kubeflow)."""
CLUSTERS = (LSFEnvironment, MPIEnvironment)
"""What starts ranks on other nodes beside srun and torchrun, as Lightning sees it."""


def check_optimizer(cfg: DictConfig) -> None:
    """Raises: ConfigError: for settings that the optimizer refuses. Other optimizers than torch's may compile code, and are
    not tried."""
    optimizer = instantiate(cfg.optimizer)
    if str(cfg.optimizer["_target_"]).startswith("torch.optim."):
        explained(partial(optimizer.func, [torch.nn.Parameter(torch.zeros(1))]), optimizer.keywords, "optimizer")


def try_trainer(cfg: DictConfig) -> None:
    """Raises: ConfigError: for settings that Lightning's trainer refuses, or that srun or torchrun contradicts."""
    accelerator = cfg.trainer.get("accelerator")
    if accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"trainer.accelerator={accelerator}: torch finds no GPU here; use trainer=cpu, or with the trainer of several "
            "ranks trainer.accelerator=cpu trainer.devices=2 trainer.precision=32-true"
        )
    settings = {str(key): value for key, value in trainer_options(cfg.trainer).items() if key != "_target_"}
    # not the environment that it finds by itself: Slurm's ends in an IndexError where the numbers of tasks differ
    alone: dict[str, Any] = {"plugins": [LightningEnvironment()]}
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}

    def make(**settings: Any) -> object:
        return instantiate({"_target_": cfg.trainer["_target_"], **settings, **quiet}, **alone)

    trainer: Any = explained(make, settings, "trainer")
    check_tasks(trainer)
    asked = cfg.trainer.get("precision")
    if str(trainer.precision) != precision_name(asked):  # Lightning only warns
        raise ConfigError(
            f"trainer.precision={asked}: Lightning would compute in {trainer.precision} here; set trainer.precision="
            f"{trainer.precision}"
        )


def _starts_nodes() -> bool:
    """Whether anything but srun and torchrun starts ranks on several nodes."""
    return any(name in os.environ for name in BY_HAND) or any(cluster.detect() for cluster in CLUSTERS)


def check_tasks(trainer: Any) -> None:
    """Raises: ConfigError: where srun or torchrun has started another number of ranks than the trainer is for, or where the
    trainer is for several nodes and nothing has started ranks there."""
    started = started_tasks()
    if started is None:
        if trainer.num_nodes > 1 and not _starts_nodes():
            raise ConfigError(
                f"trainer.num_nodes={trainer.num_nodes}: nothing has started ranks on the other nodes, and this one would wait "
                "for them; start the command by srun or torchrun, or on each node by hand with NODE_RANK, MASTER_ADDR "
                "and MASTER_PORT, or set trainer.num_nodes=1"
            )
        return
    tasks, nodes = started
    ranks = trainer.num_devices * trainer.num_nodes
    if (tasks, nodes) == (ranks, trainer.num_nodes):
        return
    per_node = "--nproc-per-node and --nnodes" if by_torchrun() else "--ntasks-per-node and --nodes"
    launcher = "torchrun" if by_torchrun() else "srun"
    if tasks % nodes:
        remedy = f"start as many on each node, by {per_node}"
    else:
        remedy = f"set trainer.devices={tasks // nodes} trainer.num_nodes={nodes}, or {per_node} to these"
        remedy = f"choose a trainer of several ranks, e.g. trainer=ddp; {remedy}" if ranks == 1 else remedy
    raise ConfigError(
        f"{launcher} has started {tasks} ranks on {nodes} nodes, and this run is for {ranks} on {trainer.num_nodes} "
        f"(trainer.devices={trainer.num_devices}, trainer.num_nodes={trainer.num_nodes}); {remedy}"
    )
