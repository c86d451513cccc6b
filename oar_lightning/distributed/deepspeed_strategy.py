"""DeepSpeed's ZeRO through Lightning's strategy, also on the CPU, where Lightning refuses it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy
from lightning.pytorch.strategies.deepspeed import reset_seed
from torch import Tensor

from oar_lightning.common.scopes import replaced
from oar_lightning.distributed.deepspeed_checkpoint import import_deepspeed, loading_data_only
from oar_lightning.distributed.frozen import frozen_weights
from oar_lightning.distributed.rank_launcher import RankLauncher


class ZeroRedundancy(DeepSpeedStrategy):
    """`DeepSpeedStrategy` whose ranks end together. It also runs on the CPU, with gloo and the optimizer that the config names.

    Args:
        stage: what is divided among the ranks: 1 the optimizer's states, 2 the gradients too, 3 the weights too.
        settings: further arguments of Lightning's `DeepSpeedStrategy`.
    """

    def __init__(self, stage: int, **settings: Any) -> None:
        import_deepspeed(f"trainer=deepspeed_zero{stage}")
        # stage 3 divides frozen weights too, and a checkpoint needs every part
        super().__init__(stage=stage, **{"exclude_frozen_parameters": stage < 3} | settings)
        self.stage = stage
        self._skips_step = False
        assert isinstance(self.config, dict)
        # DeepSpeed's own Adam is compiled at first use; torch's Adam updates offloaded states instead
        self.config.setdefault("zero_force_ds_cpu_optimizer", False)
        # otherwise Lightning reads it from a torch DataLoader; there is none here
        self.config.setdefault("train_micro_batch_size_per_gpu", 1)

    @property
    def _on_cpu(self) -> bool:
        return self.parallel_devices is not None and self.parallel_devices[0].type == "cpu"

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = RankLauncher(self.cluster_environment, self.num_processes, self.num_nodes)

    def setup_environment(self) -> None:
        if not self._on_cpu:
            return super().setup_environment()
        return super(DeepSpeedStrategy, self).setup_environment()  # skips DeepSpeedStrategy's check for a GPU and nothing else

    def setup_distributed(self) -> None:
        if not self._on_cpu:
            return super().setup_distributed()
        import deepspeed.ops

        # otherwise g++ builds an extension at first use; gloo does the same work
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        reset_seed()
        self.set_world_ranks()
        self._init_deepspeed_distributed()

    @property
    def root_device(self) -> torch.device:
        return torch.device("cpu", self.local_rank) if self._on_cpu else super().root_device  # DeepSpeed needs an index

    def setup(self, trainer: L.Trainer) -> None:
        super().setup(trainer)
        for optimizer in self.optimizers:
            withheld: list[tuple[Tensor, Tensor | None]] = []
            # on torch's optimizer inside DeepSpeed's: it neither moves nor counts parameters without gradients
            optimizer.optimizer.register_step_pre_hook(functools.partial(self._withhold, withheld))
            optimizer.optimizer.register_step_post_hook(functools.partial(self._give_back, withheld))

    def skip_step(self, skip: bool) -> None:
        """Say whether the next optimizer step shall move nothing, like a step without gradients."""
        self._skips_step = skip

    def _withhold(self, withheld: list[tuple[Tensor, Tensor | None]], optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Hide the gradients from torch's optimizer in a step that shall move nothing."""
        if self._skips_step:
            withheld += [(p, p.grad) for group in optimizer.param_groups for p in group["params"]]
            for parameter, _gradient in withheld:
                parameter.grad = None

    def _give_back(self, withheld: list[tuple[Tensor, Tensor | None]], *_: Any) -> None:
        """Undo `_withhold`: DeepSpeed goes on to use its gradient buffers."""
        for parameter, gradient in withheld:
            parameter.grad = gradient
        withheld.clear()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        filled_in = own_frozen_weights(self.model) if self.stage < 3 else contextlib.nullcontext()
        with loading_data_only(), filled_in:
            return dict(super().load_checkpoint(checkpoint_path, weights_only))

    @contextlib.contextmanager
    def gathered_parameters(self) -> Iterator[None]:
        """A block in which every rank has all weights and ZeRO-3's hooks are off.

        Ranks may then run the model a different number of times. All ranks have to enter. The weights must not be changed
        inside.
        """
        if self.stage < 3:
            yield
            return
        import deepspeed

        engine = self.model
        offload = engine.optimizer.parameter_offload

        with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
            for hook in (*offload.forward_hooks, *offload.backward_hooks):
                hook.remove()
            offload.forward_hooks.clear()
            offload.backward_hooks.clear()
            try:
                yield
            finally:
                offload._register_deepspeed_module(offload.module)


@contextlib.contextmanager
def own_frozen_weights(engine: Any) -> Iterator[None]:
    """A block in which DeepSpeed loads a checkpoint that lacks the frozen weights; the engine keeps its own."""
    load = engine.load_module_state_dict

    def filled_in(checkpoint: dict[str, Any], **settings: Any) -> None:
        checkpoint["module"] = frozen_weights(engine.module) | checkpoint["module"]
        load(checkpoint, **settings)

    with replaced(engine, "load_module_state_dict", filled_in):
        yield
