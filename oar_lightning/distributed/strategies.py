"""What training asks of Lightning's strategies beyond their common interface, one typed adapter for each kind."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning as L
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor

from oar_lightning.distributed.deepspeed_checkpoint import Layout
from oar_lightning.distributed.deepspeed_strategy import ZeroRedundancy
from oar_lightning.distributed.rank_launcher import RankLauncher
from oar_lightning.distributed.ranks import world_size


class DistributedDataParallel(DDPStrategy):
    """`DDPStrategy` whose ranks end together."""

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = RankLauncher(self.cluster_environment, self.num_processes, self.num_nodes)


class StrategyAdapter:
    """For strategies in which every process holds all weights and all gradients: one device, or DDP."""

    ranks_may_differ_in_passes = True
    """Whether a rank may make more passes than another, or get its gradients in another order."""

    shards_weights = False
    """Whether a process may hold a part of the weights only."""

    moves_float32 = False
    """Whether the optimizer moves float32 copies of weights of 16 bits."""

    needs_each_loss = False
    """Whether each micro-batch has to have a loss, on one rank, too."""

    judges_gradients = False
    """Whether it looks by itself for gradients that are not finite; parameters need not hold whole ones then."""

    layout: Layout | None = None
    """How its checkpoints are divided among ranks; None for a single file."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    @property
    def scales_losses(self) -> bool:
        """Whether a loss scaler is at work (16-mixed). It skips steps whose gradient is not finite, by design."""
        plugin = self.strategy.precision_plugin
        return isinstance(plugin, MixedPrecision) and plugin.scaler is not None

    @property
    def checkpoint_writer(self) -> tuple[Any, str]:
        """The object and its method by which a rank writes its files of a checkpoint."""
        return self.strategy.checkpoint_io, "save_checkpoint"

    def loss_factor(self, microbatches: int) -> float:
        """The factor of a loss that undoes Lightning's averages over micro-batches and over ranks."""
        return float(microbatches * world_size())

    def backward(self, loss: Tensor, **arguments: Any) -> None:
        """A backward pass with these arguments of `Tensor.backward`."""
        self.strategy.backward(loss, None, **arguments)

    def gradient_norm(self) -> float | None:
        """The gradient norm of the last step before clipping. None: the parameters hold their gradients, compute it there."""
        return None

    def skip_step(self, skip: bool) -> None:
        """Say whether the next optimizer step shall move nothing. Here a step without gradients moves nothing by itself."""

    def skipped_steps(self) -> int | None:
        """The number of steps that the strategy skipped because a gradient was not finite. None: it does not check."""
        return None

    def gathered_parameters(self) -> AbstractContextManager[Any]:
        """A block in which every rank has all weights and may run the model as often as it likes. All ranks have to enter."""
        return nullcontext()


class ZeroAdapter(StrategyAdapter):
    """DeepSpeed's ZeRO: gradients, and in stage 3 weights, are divided among the ranks."""

    ranks_may_differ_in_passes = False
    moves_float32 = True
    needs_each_loss = True
    judges_gradients = True

    def __init__(self, strategy: ZeroRedundancy) -> None:
        super().__init__(strategy)
        self.zero = strategy
        self.shards_weights = strategy.stage == 3
        self.layout = Layout(strategy.stage, strategy.world_size)

    @property
    def checkpoint_writer(self) -> tuple[Any, str]:
        return self.zero.model.checkpoint_engine, "save"

    def loss_factor(self, microbatches: int) -> float:
        """DeepSpeed divides by the number of micro-batches a second time."""
        return float(microbatches**2 * world_size())

    def gradient_norm(self) -> float | None:
        norm = self.zero.model.get_global_grad_norm()
        return None if norm is None else float(norm)

    def skip_step(self, skip: bool) -> None:
        self.zero.skip_step(skip)

    def skipped_steps(self) -> int | None:
        engine = self.zero.model
        return None if engine.fp16_enabled() else int(engine.skipped_steps)  # its loss scaler skips steps by design

    def gathered_parameters(self) -> AbstractContextManager[Any]:
        return self.zero.gathered_parameters()


def adapt(trainer: L.Trainer) -> StrategyAdapter:
    """The adapter of a trainer's strategy.

    Raises:
        ValueError: for strategies of Lightning that divide the model among ranks, or train in forks of this process.
    """
    strategy = trainer.strategy
    if getattr(strategy, "_start_method", "popen") != "popen":
        raise ValueError(
            f"trainer.strategy=ddp_{strategy._start_method} trains in copies of this process, whose results it would not have; "
            "choose ddp, from a command or a script, or devices=1"
        )
    if isinstance(strategy, ZeroRedundancy):
        return ZeroAdapter(strategy)
    if isinstance(strategy, DeepSpeedStrategy | FSDPStrategy | ModelParallelStrategy):
        raise ValueError(
            f"trainer.strategy={type(strategy).__name__} divides the model among ranks in a way that sampling, skipped steps "
            "and checkpoints here do not know; choose trainer=deepspeed_zero1, deepspeed_zero2, deepspeed_zero3 or ddp"
        )
    return StrategyAdapter(strategy)
