"""A new run that begins with the state of another one, under a config of its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import lightning as L

from oar_lightning.data.stream import BEGINNING
from oar_lightning.training.policy_module import PolicyModule
from oar_lightning.training.schedule import set_rates


class Fork(L.Callback):
    """Makes a loaded checkpoint the beginning of a new run.

    Weights, the optimizer's moments, the step, the position in the data and the random states are those of the checkpoint.
    What callbacks count (evaluations, seconds, skipped steps) begins anew. The optimizer's settings and the schedule are the
    new run's, which loading would replace. `new_data`: the position in the data begins anew. `new_optimizer`: so do the
    moments. `new_credit`: so does the state of these parts (`scorer`, `gate`, `entropy`, `curriculum`).
    """

    def __init__(self, new_data: bool = False, new_optimizer: bool = False, new_credit: Collection[str] = ()) -> None:
        self.new_data = new_data
        self.new_optimizer = new_optimizer
        self.new_credit = frozenset(new_credit)

    def on_load_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["callbacks"] = {}
        checkpoint["credit"] = {k: state for k, state in checkpoint.get("credit", {}).items() if k not in self.new_credit}
        if self.new_optimizer:
            checkpoint["optimizer_states"] = []
        if self.new_data or "curriculum" in self.new_credit:
            for loader in checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]:
                kept = {key: value for key, value in loader["stream"].items() if key != "curriculum"}
                loader["stream"] = dict(BEGINNING) if self.new_data else kept

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, PolicyModule)
        settings = module.optimizer_settings()
        for optimizer, config in zip(trainer.optimizers, trainer.lr_scheduler_configs, strict=True):
            scheduler = config.scheduler
            scheduler.base_lrs = [settings["lr"]] * len(optimizer.param_groups)
            for group in optimizer.param_groups:
                group |= {name: value for name, value in settings.items() if name in group}
                group["initial_lr"] = settings["lr"]
            set_rates(scheduler)
