"""The duration of a run and its processor time, over all its starts."""

from __future__ import annotations

import time
from typing import Any

import lightning as L

from oar_lightning.training.module import PolicyOptimization


class RunSeconds(L.Callback):
    """Counts the seconds of training, of its process on processors, and of each phase of its steps. The checkpoint carries them
    to the next start."""

    def __init__(self) -> None:
        self._before = self._cpu_before = 0.0
        self._started: tuple[float, float] | None = None
        self._phases: dict[str, float] = {}
        self._module: PolicyOptimization | None = None

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._started = time.monotonic(), time.process_time()
        if isinstance(module, PolicyOptimization):
            self._module = module
            module.step_log.clock.before |= self._phases

    def totals(self) -> dict[str, float]:
        """``time/total_s``, ``time/total_cpu_s`` and ``time/total_<phase>_s``, as final metrics have them."""
        now = cpu = 0.0
        if self._started is not None:
            now, cpu = time.monotonic() - self._started[0], time.process_time() - self._started[1]
        phases = {f"time/total_{phase}_s": seconds for phase, seconds in self._phase_seconds().items()}
        return {"time/total_s": self._before + now, "time/total_cpu_s": self._cpu_before + cpu} | phases

    def _phase_seconds(self) -> dict[str, float]:
        return self._module.step_log.clock.totals() if self._module is not None else self._phases

    def state_dict(self) -> dict[str, Any]:
        totals = self.totals()
        return {"duration": totals["time/total_s"], "cpu": totals["time/total_cpu_s"], "phases": self._phase_seconds()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._before, self._phases = float(state["duration"]), dict(state["phases"])
        self._cpu_before = float(state.get("cpu", 0.0))  # a checkpoint of an older version has none
