"""The duration of a run, over all its starts."""

from __future__ import annotations

import time
from typing import Any

import lightning as L

from oar_lightning.training.module import PolicyOptimization


class RunSeconds(L.Callback):
    """Counts the seconds of training and of each phase of its steps. The checkpoint carries them to the next start."""

    def __init__(self) -> None:
        self._before = 0.0
        self._started: float | None = None
        self._phases: dict[str, float] = {}
        self._module: PolicyOptimization | None = None

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._started = time.monotonic()
        if isinstance(module, PolicyOptimization):
            self._module = module
            module.step_log.clock.before |= self._phases

    def totals(self) -> dict[str, float]:
        """``time/total_s`` and ``time/total_<phase>_s``, as final metrics have them."""
        now = 0.0 if self._started is None else time.monotonic() - self._started
        phases = {f"time/total_{phase}_s": seconds for phase, seconds in self._phase_seconds().items()}
        return {"time/total_s": self._before + now} | phases

    def _phase_seconds(self) -> dict[str, float]:
        return self._module.step_log.clock.totals() if self._module is not None else self._phases

    def state_dict(self) -> dict[str, Any]:
        return {"duration": self.totals()["time/total_s"], "phases": self._phase_seconds()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._before, self._phases = float(state["duration"]), dict(state["phases"])
