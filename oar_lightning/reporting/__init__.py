"""Makes a study's folder from MLflow runs: choice of runs, statistics, tables, figures and a page."""

from __future__ import annotations

from oar_lightning.reporting.export import read_export
from oar_lightning.reporting.index import write_index
from oar_lightning.reporting.page import kept_prose, write_study
from oar_lightning.reporting.runs import Curves, ReportConfig, RunRecord, read_curves, read_runs
from oar_lightning.reporting.settings import KEPT
from oar_lightning.reporting.study import Study, accuracies, make_study

__all__ = [
    "KEPT",
    "Curves",
    "ReportConfig",
    "RunRecord",
    "Study",
    "accuracies",
    "kept_prose",
    "make_study",
    "read_curves",
    "read_export",
    "read_runs",
    "write_index",
    "write_study",
]
