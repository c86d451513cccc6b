"""Measures how long each phase of a training step takes, method by method, in one run."""

from oar_lightning.benchmark.measure import BenchmarkConfig, measure, rounds
from oar_lightning.benchmark.summary import Measurement, PhaseResult
from oar_lightning.benchmark.workload import ConfiguredWorkload, RandomShape, RandomWorkload, Workload

__all__ = [
    "BenchmarkConfig",
    "ConfiguredWorkload",
    "Measurement",
    "PhaseResult",
    "RandomShape",
    "RandomWorkload",
    "Workload",
    "measure",
    "rounds",
]
