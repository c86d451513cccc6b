"""Makes a study's folder from MLflow runs: choice of runs, statistics, tables, figures and a page."""

from __future__ import annotations

from oar_lightning.reporting.index import write_index
from oar_lightning.reporting.page import kept_prose, write_study
from oar_lightning.reporting.runs import ReportConfig, read_curves, read_runs
from oar_lightning.reporting.study import Study, accuracies, make_study
from oar_lightning.reporting.tables import ENDS

__all__ = [
    "ENDS",
    "ReportConfig",
    "Study",
    "accuracies",
    "kept_prose",
    "make_study",
    "read_curves",
    "read_runs",
    "write_index",
    "write_study",
]
