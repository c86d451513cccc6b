"""The trained weights where each rank holds a part of them."""

from __future__ import annotations

import lightning as L
import torch

from oar_lightning.distributed.strategies import adapt


class FinalWeights(L.Callback):
    """Gathers the model's weights at the end of training where each rank holds a part of them (ZeRO-3).

    `state` has them on the CPU of rank 0, and is None otherwise.
    """

    def __init__(self) -> None:
        self.state: dict[str, torch.Tensor] | None = None

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        strategy = adapt(trainer)
        if not strategy.shards_weights:
            return
        with strategy.gathered_parameters():
            if trainer.is_global_zero:
                state = module.model.state_dict()
                # by address: tied weights stay one tensor, which is saved once
                copies = {v.data_ptr(): v.detach().to("cpu", copy=True) for v in state.values()}
                self.state = {name: copies[v.data_ptr()] for name, v in state.items()}
