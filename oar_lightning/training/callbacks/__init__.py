"""Lightning callbacks: evaluation, checkpoints, progress, alarms, and what sweeps ask of a run."""

from oar_lightning.training.callbacks.alarms import AlarmConfig, CreditAlarms
from oar_lightning.training.callbacks.checkpoint import (
    LAST,
    LastCheckpoint,
    RandomState,
    RunIdentity,
)
from oar_lightning.training.callbacks.divergence import Divergence, DivergenceConfig
from oar_lightning.training.callbacks.errors import FirstError
from oar_lightning.training.callbacks.evaluation import EvaluationCallback
from oar_lightning.training.callbacks.final_weights import FinalWeights
from oar_lightning.training.callbacks.fork import Fork
from oar_lightning.training.callbacks.progress import TrainingProgress
from oar_lightning.training.callbacks.same_start import SameStart
from oar_lightning.training.callbacks.seconds import RunSeconds
from oar_lightning.training.callbacks.stop import GracefulStop

__all__ = [
    "LAST",
    "AlarmConfig",
    "CreditAlarms",
    "Divergence",
    "DivergenceConfig",
    "EvaluationCallback",
    "FinalWeights",
    "FirstError",
    "Fork",
    "GracefulStop",
    "LastCheckpoint",
    "RandomState",
    "RunIdentity",
    "RunSeconds",
    "SameStart",
    "TrainingProgress",
]
