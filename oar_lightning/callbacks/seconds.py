"""What a run took, over all its starts."""

from __future__ import annotations

import time
from typing import Any

import lightning as L

from oar_lightning.module import PHASES, PolicyOptimization


class RunSeconds(L.Callback):
    """Seconds of the fit and of each phase of its steps, carried from start to start by the checkpoint."""

    def __init__(self) -> None:
        self._before = 0.0
        self._started: float | None = None
        self._phases: dict[str, float] = {}

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._started = time.monotonic()
        if isinstance(module, PolicyOptimization):
            module.phase_seconds.update(self._phases)

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        if isinstance(module, PolicyOptimization):
            self._phases = dict(module.phase_seconds)

    def totals(self) -> dict[str, float]:
        """``duration_s`` and ``seconds/<phase>``, as final metrics have them."""
        now = 0.0 if self._started is None else time.monotonic() - self._started
        return {"duration_s": self._before + now} | {f"seconds/{PHASES[k]}": v for k, v in self._phases.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"duration": self.totals()["duration_s"], "phases": self._phases}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._before, self._phases = float(state["duration"]), dict(state["phases"])
