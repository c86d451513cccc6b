"""What both training modules share: a policy, its optimizer, and checkpoints without frozen weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L
import torch

from oar_lightning.distributed.frozen import fill_in_frozen, leave_out_frozen
from oar_lightning.policy.casting import unsaved_buffers_kept
from oar_lightning.policy.out_of_memory import PASSES
from oar_lightning.policy.pretrained import Policy
from oar_lightning.training.schedule import Schedule, set_rates


class PolicyModule(L.LightningModule):
    """A policy that is trained.

    Args:
        policy: the model and its tokenizer.
        optimizer: makes the optimizer of the given parameters.
        schedule: of the learning rate, counted in optimizer steps.
    """

    memory_bounds = PASSES
    """The keys that bound what its passes take, in words."""

    def __init__(self, policy: Policy, optimizer: Callable[..., torch.optim.Optimizer], schedule: Schedule) -> None:
        super().__init__()
        self.model = policy.model
        self.tokenizer = policy.tokenizer
        self.make_optimizer = optimizer
        self.schedule = schedule

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """As of any module, whichever method casts it: Lightning calls `to` for `precision=bf16-true`, and DeepSpeed before
        0.19.2 `bfloat16` or `half`."""
        with unsaved_buffers_kept(self):
            return super()._apply(*args, **kwargs)

    def configure_optimizers(self) -> Any:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return self.schedule.with_optimizer(self.make_optimizer(trained), int(self.trainer.max_steps))

    def optimizer_settings(self) -> dict[str, Any]:
        """The optimizer's settings of the config, whatever a checkpoint has put in their place."""
        return self.make_optimizer([torch.zeros(1, requires_grad=True)]).defaults

    def on_train_start(self) -> None:
        """A resumed run has the learning rate of its own schedule: the checkpoint's is that of the number of steps then. And
        its own `optimizer.foreach`, which a run that ran out of memory is resumed with."""
        for config in self.trainer.lr_scheduler_configs:
            set_rates(config.scheduler)
        given = self.optimizer_settings()
        for group in (group for optimizer in self.trainer.optimizers for group in optimizer.param_groups):
            group |= {name: given[name] for name in ("foreach",) if name in group and name in given}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        leave_out_frozen(self, checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        fill_in_frozen(self, checkpoint)
