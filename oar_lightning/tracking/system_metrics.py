"""The machine's load as metrics of a run: MLflow's own monitor, whose samples go to the journal like all others.

To import this file takes psutil.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

log = logging.getLogger(__name__)

Publish = Callable[[Mapping[str, float], int], None]
"""Takes metrics and the number of the sample."""


class SystemMetrics(SystemMetricsMonitor):
    """Samples every 10 s (MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL) and at the end; of the machine of rank 0."""

    def __init__(self, publish: Publish) -> None:
        super().__init__(run_id=None)
        self._publish = publish

    def monitor(self) -> None:
        """The thread's work. The parent class asks the server before each sample whether the run still goes on."""
        self.collect_metrics()  # psutil's first reading of the CPU is always 0
        self._clear()
        ended = False
        while not ended:
            ended = self._shutdown_event.wait(self.sampling_interval)
            self.collect_metrics()
            try:
                self.publish_metrics(self.aggregate_metrics())
            except OSError as error:  # a full disk, which the run reports itself where it cannot go on
                log.warning("the machine's load is not logged any more: %s", error)
                return

    def publish_metrics(self, metrics: Mapping[str, float]) -> None:
        self._publish({f"{self._metrics_prefix}{name}": value for name, value in metrics.items()}, self._logging_step)
        self._logging_step += 1
        self._clear()

    def _clear(self) -> None:
        for monitor in self.monitors:
            monitor.clear_metrics()
