"""Progress on the console: a Rich bar on a terminal, log lines elsewhere."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import RichProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

log = logging.getLogger(__name__)


class TrainingProgress(RichProgressBar):
    """Rich's bar over the whole run with the module's metrics and the time left; log lines where there is no terminal."""

    LINES = 20

    def __init__(self) -> None:
        super().__init__(leave=True)
        self._terminal = Console(stderr=True).is_terminal and Console().is_terminal
        self._started = (0.0, 0)
        self._last = -1
        if not self._terminal:
            self.disable()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._started = (time.monotonic(), trainer.global_step)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        super().on_train_batch_end(trainer, pl_module, *args)
        step, total = trainer.global_step, int(trainer.max_steps)
        since, first = self._started
        due = step > first and (step % max(1, total // self.LINES) == 0 or step == total)
        if self._terminal or step == self._last or not due or not trainer.is_global_zero:
            return
        self._last = step
        left = (time.monotonic() - since) / (step - first) * (total - step)
        metrics = " ".join(f"{k} {float(v):.4g}" for k, v in trainer.progress_bar_metrics.items())
        log.info("step %d/%d %s, %.0f s left", step, total, metrics, left)

    @property
    def total_train_batches(self) -> int | float:
        # Lightning counts optimizer steps here where micro-batches are meant
        return self.trainer.num_training_batches

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return metrics

    def _get_train_description(self, current_epoch: int) -> str:
        return "Training"


@contextlib.contextmanager
def counted_progress(what: str, unit: str, total: int, done: int = 0, lines: int = 20) -> Iterator[Callable[[int], None]]:
    """A progress bar over `total` things, of which `done` exist already; about `lines` log lines without a terminal.

    Yields the function to call with how many more are done.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times, console=console) as bar:
            task = bar.add_task(what, total=total, completed=done)
            yield lambda count: bar.advance(task, count)
        return
    started, first, every = time.monotonic(), done, max(1, total // lines)

    def report(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        if count and (done // every > before // every or done == total):
            left = (time.monotonic() - started) / (done - first) * (total - done)
            log.info("%s: %d/%d %s, %.0f s left", what, done, total, unit, left)

    yield report


def before_after_table(eval_sets: dict[str, tuple[dict[str, float], dict[str, float]]]) -> Table:
    """Accuracies before and after training, in percent with their 95 % intervals."""
    table = Table(title="Held-out accuracy, before and after")
    for column in ("eval set", "metric", "before", "after", "difference"):
        table.add_column(column, justify="left" if column in ("eval set", "metric") else "right")
    for name, (before, after) in eval_sets.items():
        for metric in (m for m in accuracy_names(after) if m in before):
            cells = [percent(row, metric) for row in (before, after)]
            table.add_row(name, metric, *cells, f"{100 * (after[metric] - before[metric]):+.1f} points")
    return table


def accuracy_names(metrics: Iterable[str]) -> list[str]:
    """The accuracies among an evaluation's metrics. Left out: intervals, levels, counts, and pass@1, which is avg@k."""
    names = [m for m in metrics if m.startswith(("avg_at_", "pass_at_", "maj_at_")) or m == "greedy"]
    return [m for m in names if m != "pass_at_1" and not m.endswith(("_low", "_high"))]


def percent(row: Mapping[str, float], metric: str) -> str:
    """A share in percent with its interval where there is one."""
    interval = ""
    if f"{metric}_low" in row:
        interval = f" [{100 * row[f'{metric}_low']:.1f}, {100 * row[f'{metric}_high']:.1f}]"
    return f"{100 * row[metric]:.1f} %{interval}"
