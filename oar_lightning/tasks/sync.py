"""task=sync: deliver to MLflow what runs recorded and could not deliver: their server was away, or they were killed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.progress import counted_progress
from oar_lightning.common.tables import ConsoleTable
from oar_lightning.tracking.courier import short
from oar_lightning.tracking.delivery import REFUSED, Delivery
from oar_lightning.tracking.journal import JOURNAL, STATE, Journal, JournalInUse, undelivered
from oar_lightning.tracking.mlflow_logger import FOLDER


@dataclass(frozen=True)
class Synced:
    """The outcome for one journal: counts of records, and a note where some are left."""

    folder: Path
    run_id: str | None
    delivered: int
    left: int
    note: str = ""


def prepare(cfg: DictConfig) -> Callable[[], float | None]:
    """Find the journals.

    Raises:
        ConfigError: where the folder is not there.
    """
    if cfg.sync.folder is None or OmegaConf.is_config(cfg.sync.folder):
        raise ConfigError(f"sync.folder must be a text, got {cfg.sync.folder}; give a run's folder, or one that holds runs")
    folder = Path(str(cfg.sync.folder)).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"sync.folder={folder}: no such folder; give a run's folder, or one that holds runs")
    journals = sorted(path.parent for path in folder.rglob(JOURNAL) if path.parent.name.startswith(FOLDER))
    return lambda: run(folder, journals, cfg.sync.tracking_uri)


def run(folder: Path, journals: list[Path], tracking_uri: str | None) -> float:
    """Deliver, print the table, and exit with code 1 where anything is left; returns how many records were delivered."""
    synced = []
    with counted_progress("delivering", "runs", len(journals)) as advance:
        for journal in journals:
            synced.append(sync(journal, tracking_uri))
            advance(1)
    console = Console(markup=False)
    if (shown := table(folder, synced)).rows:
        shown.print(console)
    for one in synced:
        if one.note:
            console.print(f"{one.folder}: {one.note}", soft_wrap=True, markup=False)
    delivered, left = sum(s.delivered for s in synced), sum(s.left for s in synced)
    console.print(f"{len(synced)} runs, {delivered} records delivered now, {left} left", soft_wrap=True)
    if left:
        sys.exit(1)
    return float(delivered)


def sync(folder: Path, tracking_uri: str | None) -> Synced:
    """Deliver one journal, unless a running process does."""
    try:
        with contextlib.closing(Journal(folder)) as journal:
            if not journal.end.records:
                return Synced(folder, None, 0, 0, "empty: the run ended before it recorded anything")
            return deliver(Delivery(folder, tracking_uri), elsewhere=tracking_uri is not None)
    except JournalInUse:
        left = undelivered(folder)
        return Synced(folder, None, 0, left, "in use by a running process, which delivers it" if left else "")
    except (ValueError, OSError) as error:  # a damaged journal, or one that may not be written
        return Synced(folder, None, 0, 1, short(error))


def deliver(delivery: Delivery, elsewhere: bool) -> Synced:
    """`elsewhere`: the store is not the one that the run recorded."""
    before, begun, problem = delivery.left(), delivery.state.run_id, ""
    if elsewhere and not before:
        problem = (
            f"was delivered before, and nothing is sent to {delivery.tracking_uri} now; to send all of it there remove "
            f"{delivery.folder / STATE}"
        )
    try:
        delivery.deliver()
    except Exception as error:  # an error of one run must not stop the delivery of the others; the table shows it
        problem = short(error)
        if elsewhere and begun:
            problem += (
                f"; where run {begun} was begun in another store, remove {delivery.folder / STATE} to send all of it to "
                f"{delivery.tracking_uri}"
            )
    left, refused = delivery.left(), delivery.refused()
    if refused:
        problem = " ".join(filter(None, (problem, f"{refused} refused by MLflow: see {delivery.folder / REFUSED}")))
    return Synced(delivery.folder, delivery.state.run_id, before - left, left + refused, problem)


def table(folder: Path, synced: list[Synced]) -> ConsoleTable:
    """One line for each run that had something to deliver."""
    rows = []
    for one in synced:
        if one.delivered or one.left or one.note:
            name = one.folder.relative_to(folder).parent if one.folder.name == FOLDER else one.folder.relative_to(folder)
            rows.append([str(name), one.run_id or "-", str(one.delivered), str(one.left)])
    title = f"Delivered to MLflow from {folder}"
    return ConsoleTable(title, ("run folder", "MLflow run", "delivered", "left"), rows, keys=2)
