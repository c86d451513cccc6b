"""Lightning callbacks: evaluation, checkpoints, progress."""

from oar_lightning.callbacks.checkpoint import LAST, GracefulStop, LastCheckpoint, RandomState, RunIdentity
from oar_lightning.callbacks.evaluation import EvaluationCallback
from oar_lightning.callbacks.progress import TrainingProgress

__all__ = [
    "LAST",
    "EvaluationCallback",
    "GracefulStop",
    "LastCheckpoint",
    "RandomState",
    "RunIdentity",
    "TrainingProgress",
]
