"""task=report: a sweep's runs, or any others, from MLflow into a folder of reports/ with tables, figures and a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.utils import instantiate
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from omegaconf import DictConfig
from rich.console import Console

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.outputs import output_folder
from oar_lightning.common.paths import local_database
from oar_lightning.reporting import (
    KEPT,
    Curves,
    ReportConfig,
    RunRecord,
    Study,
    accuracies,
    kept_prose,
    make_study,
    read_curves,
    read_export,
    read_runs,
    write_index,
    write_study,
)
from oar_lightning.tracking.mlflow_client import connect
from oar_lightning.wiring.run_tags import this_command


@dataclass(frozen=True)
class Source:
    """Where a study comes from: a sweep's own runs, the runs, and what reads their curves."""

    parents: Sequence[RunRecord]
    runs: Sequence[RunRecord]
    curves: Callable[[Study], Curves]


def prepare(cfg: DictConfig) -> Callable[[], None]:
    config: ReportConfig = instantiate(cfg.report, _convert_="all")
    output_folder(config.folder, "report.folder")
    source = exported(Path(config.csv).expanduser()) if config.csv else stored(cfg, config)
    study = make_study(config.study, source.parents, source.runs, config.metric, config.baseline)
    folder = Path(config.folder).expanduser() / f"{study.date}-{study.name}"
    kept = kept_prose(folder)
    command = this_command()
    return lambda: run(source.curves(study), study, folder, kept, command)


def exported(path: Path) -> Source:
    runs, curves = read_export(path)
    return Source([], runs, lambda study: curves)


def stored(cfg: DictConfig, config: ReportConfig) -> Source:
    client = open_store(cfg)
    parents, runs = read_runs(client, str(cfg.logger.experiment_name), config)
    return Source(parents, runs, lambda study: read_curves(client, study.runs, [*accuracies(study.runs), *KEPT]))


def run(curves: Curves, study: Study, folder: Path, kept: dict[str, str], command: str) -> None:
    left_out = write_study(folder, study, curves, kept, command)
    write_index(folder.parent)
    console = Console(markup=False)
    counts = f"{len(study.runs)} runs in {len(study.arms)} arms"
    console.print(f"{counts}, {len(study.uncounted)} not counted; {len(left_out)} figures left out", highlight=False)
    console.print(f"report: {folder / 'README.md'}", soft_wrap=True)


def open_store(cfg: DictConfig) -> MlflowClient:
    """The MLflow store that runs are logged to.

    Raises:
        ConfigError: where nothing is logged, the database is not there, or the server does not answer.
    """
    if cfg.logger is None:
        raise ConfigError("task=report reads MLflow, and logger=none has no store; leave it out or set logger.tracking_uri")
    uri = str(cfg.logger.tracking_uri)
    if (database := local_database(uri)) is not None and not database.exists():
        raise ConfigError(
            f"logger.tracking_uri={uri}: no such database; run from the folder that holds mlflow.db, or set the URI"
        )
    try:
        return connect(uri)
    except MlflowException as error:
        reason = error.message.splitlines()[0]
        raise ConfigError(f"logger.tracking_uri={uri} cannot be read ({reason}); start its server, or name another") from error
