"""What is logged of each optimizer step, and how long its phases took."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning as L
import torch

from oar_lightning.distributed.ranks import all_gather, rank
from oar_lightning.distributed.strategies import adapt
from oar_lightning.objective.metric_sums import MetricSums, Sums
from oar_lightning.policy.token_budget import sync_min
from oar_lightning.training.collector import Collected
from oar_lightning.training.datamodule import data_metrics
from oar_lightning.training.passes import largest_pass, padding_metrics
from oar_lightning.training.publish import publish
from oar_lightning.training.slots import Slot

STEP_PHASES = ("generate", "reward", "score", "logprobs", "update")
"""``time/<phase>_s`` is logged of a step, ``time/total_<phase>_s`` of the run."""

SHOWN = {"reward": "reward", "accuracy": "rewards/accuracy", "entropy": "entropy"}
"""Name on the progress bar -> metric."""


class PhaseClock:
    """Seconds of each phase: of the current step, and of all steps before it."""

    def __init__(self) -> None:
        self.before = dict.fromkeys(STEP_PHASES, 0.0)
        self.current: dict[str, float] = {}
        self._since = time.perf_counter()

    def start(self) -> None:
        """Count the update's seconds from here on."""
        self._since = time.perf_counter()

    def lap(self) -> None:
        """Add the seconds since the last call to the update's. (What follows, such as an evaluation, is not counted.)"""
        now = time.perf_counter()
        self.current["update"] = self.current.get("update", 0.0) + now - self._since
        self._since = now

    def totals(self) -> dict[str, float]:
        """Seconds of each phase so far, the current step included."""
        return {phase: self.before[phase] + self.current.get(phase, 0.0) for phase in STEP_PHASES}

    def next_step(self) -> None:
        self.before, self.current = self.totals(), {}


class StepLog(L.Callback):
    """Collects the metrics of one optimizer step and logs them at its end, exact for any number of micro-batches and ranks.

    It logs before the step's checkpoint is written, so that a kill in between loses no metric; a run has it before the
    callbacks that may end training, so that the step at which they do is logged, too.

    `listeners` get the metrics of each step, which are those of all ranks.

    At each step's end all ranks take the smallest value of each token budget that is `auto`, and log it.
    """

    def __init__(self) -> None:
        self.clock = PhaseClock()
        self.listeners: list[Callable[[int, Mapping[str, float]], None]] = []
        self._write_error: OSError | None = None
        self._clear()

    def _clear(self) -> None:
        self._sums = MetricSums()
        self._largest: dict[str, float] = {}  # times, norm, learning rate, budgets: the maximum over ranks is logged
        self._has_loss = False
        self._loss = 0.0
        self._passes: list[Sequence[int]] = []

    # -- what goes in ----------------------------------------------------------------------------------------------

    def begin(self, has_loss: bool) -> None:
        """Start an optimizer step; `has_loss` says whether any rank has a row in it."""
        self._has_loss = has_loss
        self._loss, self._passes = 0.0, []

    def add(self, collected: Collected) -> None:
        """Add what the collector has measured."""
        self._sums.merge([collected.metrics])
        self.clock.current.update(collected.seconds)

    def add_pass(self, loss: float, metrics: Sums, lengths: Sequence[int]) -> None:
        """Add a pass: its share of the step's loss, its metrics, and the lengths of its rows in tokens."""
        self._loss += loss
        self._sums.add(metrics)
        self._passes.append(lengths)

    # -- what comes out --------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        sync_min(module.budgets)

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Slot, batch_idx: int) -> None:
        self._raise_write_error()

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._raise_write_error()

    def _raise_write_error(self) -> None:
        error, self._write_error = self._write_error, None
        if error is not None:
            raise error

    def on_after_backward(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.clock.lap()

    def on_before_optimizer_step(self, trainer: L.Trainer, module: L.LightningModule, optimizer: torch.optim.Optimizer) -> None:
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        if gradients and self._has_loss and bool((norm := torch.nn.utils.get_total_norm(gradients)).isfinite()):
            self._largest["grad_norm"] = float(norm)  # (a step without a finite gradient is left out by `Divergence`)
        self._largest["learning_rate"] = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Slot, batch_idx: int
    ) -> None:
        if batch.microbatch == module.method.update.microbatches - 1:
            self.flush(trainer, module)

    def flush(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Log the step and forget it. All ranks have to call it."""
        norm = adapt(trainer).gradient_norm()
        if norm is not None and self._has_loss and math.isfinite(norm):
            self._largest["grad_norm"] = norm
        if self._has_loss:  # (sum of the shares of all ranks, one step)
            self._sums.add({"loss": (self._loss, float(rank() == 0))})
        self._sums.add(padding_metrics(self._passes))
        self._largest |= largest_pass(self._passes)
        sync_min(module.budgets)
        tokens = {budget.key.split(".")[0]: budget.tokens for budget in module.budgets if budget.auto}
        self._largest |= {f"memory/token_budget_{phase}": float(n) for phase, n in tokens.items() if n is not None}
        self._largest |= {f"time/{phase}_s": seconds for phase, seconds in self.clock.current.items()}
        self._sums.fold(max, self._largest)
        metrics = MetricSums().merge(all_gather(self._sums)).means() | data_metrics(trainer)
        metrics["time/step_s"] = sum(metrics.get(f"time/{phase}_s", 0.0) for phase in STEP_PHASES)
        self.clock.next_step()
        self._clear()
        try:
            publish(trainer, metrics, trainer.global_step)
        except OSError as error:  # a full disk; raised below, once this step's checkpoint has had its chance
            self._write_error = error
        for listener in self.listeners:
            listener(trainer.global_step, metrics)
        for name, key in SHOWN.items():
            if key in metrics:
                module.log(name, metrics[key], prog_bar=True, logger=False, batch_size=1)
