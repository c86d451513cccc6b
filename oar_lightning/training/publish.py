"""Metrics on their way out: to every logger, and to where Lightning's callbacks look for them."""

from __future__ import annotations

from collections.abc import Mapping

import lightning as L
import torch


def publish(trainer: L.Trainer, metrics: Mapping[str, float], step: int) -> None:
    """Log the metrics of a step. All ranks call it; loggers write on rank 0."""
    offer(trainer, metrics)
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=step)


def offer(trainer: L.Trainer, metrics: Mapping[str, float]) -> None:
    """Put metrics into ``trainer.callback_metrics``."""
    trainer.callback_metrics.update({name: torch.tensor(float(value)) for name, value in metrics.items()})
