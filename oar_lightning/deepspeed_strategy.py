"""DeepSpeed's ZeRO through Lightning's strategy, also on the CPU, where Lightning refuses it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch.strategies import DeepSpeedStrategy
from lightning.pytorch.strategies.deepspeed import reset_seed

from oar_lightning.strategies import RankLauncher


class ZeroRedundancy(DeepSpeedStrategy):
    """`DeepSpeedStrategy` whose ranks end together; on the CPU with gloo and the optimizer that the config names.

    Args:
        stage: what is divided among the ranks: the optimizer's states (1), gradients too (2), weights too (3).
        settings: further arguments of Lightning's `DeepSpeedStrategy`.
    """

    def __init__(self, stage: int, **settings: Any) -> None:
        if not torch.cuda.is_available():
            os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read when deepspeed is imported
        try:
            import deepspeed  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"trainer=deepspeed_zero{stage} needs the optional extra: pip install 'oar-lightning[deepspeed]'"
            ) from error
        super().__init__(stage=stage, **settings)
        assert isinstance(self.config, dict)
        # Adam of DeepSpeed's own is compiled at first use; offloaded states are updated by torch's instead
        self.config.setdefault("zero_force_ds_cpu_optimizer", False)
        self.config.setdefault("train_micro_batch_size_per_gpu", 1)  # Lightning asks a torch DataLoader, which there is none of

    @property
    def _on_cpu(self) -> bool:
        return self.parallel_devices is not None and self.parallel_devices[0].type == "cpu"

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = RankLauncher(self.cluster_environment, self.num_processes, self.num_nodes)

    def setup_environment(self) -> None:
        if not self._on_cpu:
            return super().setup_environment()
        return super(DeepSpeedStrategy, self).setup_environment()  # leaves out the check for a GPU alone

    def setup_distributed(self) -> None:
        if not self._on_cpu:
            return super().setup_distributed()
        import deepspeed.ops

        # else g++ builds an extension at first use; gloo does the same work
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        reset_seed()
        self.set_world_ranks()
        self._init_deepspeed_distributed()

    @property
    def root_device(self) -> torch.device:
        return torch.device("cpu", self.local_rank) if self._on_cpu else super().root_device  # deepspeed wants an index

    @contextlib.contextmanager
    def whole_weights(self) -> Iterator[None]:
        """With ZeRO-3: all weights on every rank and none of its hooks, so that ranks may differ in how often they run the
        model, and how long. All ranks have to enter. The weights must not be changed inside."""
        engine = self.model
        offload = getattr(getattr(engine, "optimizer", None), "parameter_offload", None)
        if offload is None:
            yield
            return
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
            for hook in (*offload.forward_hooks, *offload.backward_hooks):
                hook.remove()
            offload.forward_hooks.clear()
            offload.backward_hooks.clear()
            try:
                yield
            finally:
                offload._register_deepspeed_module(offload.module)
