"""The files by which a trial and its sweep communicate, in the trial's folder, so that any launcher works.

The sweep writes ``ticket.json`` before a trial starts. The trial writes ``run.json`` (its MLflow run) when it starts and
``result.json`` when it ends by itself. A trial without a result was interrupted.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.credentials import hidden
from oar_lightning.common.outputs import replace_file

FOLDER_VARIABLE = "OAR_LIGHTNING_JOB"
"""Environment variable with a job's folder, set in the process of a grid's or sweep's job."""

TICKET, RUN, RESULT = "ticket.json", "run.json", "result.json"

State = Literal["complete", "failed", "pruned", "refused"]
"""`refused`: its settings cannot work, and nothing has begun."""


@dataclass(frozen=True)
class Pruning:
    """Median pruning: a trial ends where its evaluation is worse than the median of the earlier trials' at that step.

    Args:
        enabled: off by default: a learning curve that starts slowly may end highest.
        startup_trials: trials that have to be complete before any is pruned.
        warmup_steps: no trial is pruned before this optimizer step.
    """

    enabled: bool = False
    startup_trials: int = 5
    warmup_steps: int = 0


@dataclass(frozen=True)
class Ticket:
    """A trial's information about its sweep. `attempt` counts the trial's starts from 1; `storage` is the study's database."""

    sweep: str
    number: int
    attempt: int
    swept: Mapping[str, Any]
    storage: str
    parent_run_id: str | None = None
    pruning: Pruning = Pruning()

    def tags(self) -> dict[str, str]:
        """The MLflow tags that make a run a child of its sweep's."""
        parent = {"mlflow.parentRunId": self.parent_run_id} if self.parent_run_id else {}
        return {
            **parent,
            "sweep": self.sweep,
            "trial": str(self.number),
            "trial_attempts": str(self.attempt),
            "swept": json.dumps(hidden(self.swept)),
        }


@dataclass(frozen=True)
class Result:
    """The result of a job. `metrics`: the final metrics of a complete job, with `objective` where the task has one. `of_all`:
    whether the reason why it was refused holds for every trial of the sweep."""

    state: State
    metrics: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    of_all: bool = False


class SweepRefused(ConfigError):
    """Raised in a trial that has not begun, for what holds for every trial of the sweep."""


class Diverged(RuntimeError):
    """Raised for training that cannot succeed: NaN or collapse. The message has the step and the remedy."""


class Pruned(BaseException):
    """Raised in a trial that its sweep prunes: an end like an interruption, and no error. The message has the step and the
    numbers."""


def job_folder() -> Path | None:
    """The folder of the job that this process runs; None outside grids and sweeps."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder) if folder else None


def current_ticket() -> Ticket | None:
    """The ticket of the trial that this process runs; None for a job of a grid and outside of jobs."""
    folder = job_folder()
    return read_ticket(folder) if folder else None


def read_ticket(folder: Path) -> Ticket | None:
    content = _read(folder / TICKET)
    return content and Ticket(**{**content, "pruning": Pruning(**content["pruning"])})


def write_ticket(folder: Path, ticket: Ticket) -> None:
    _write(folder / TICKET, dataclasses.asdict(ticket))


def read_result(folder: Path) -> Result | None:
    content = _read(folder / RESULT)
    return content and Result(**content)


def forget_result(folder: Path) -> None:
    """Let the trial be run again."""
    (folder / RESULT).unlink(missing_ok=True)


def write_result(folder: Path, result: Result) -> None:
    _write(folder / RESULT, dataclasses.asdict(result))


def read_run_id(folder: Path) -> str | None:
    """The MLflow run that the trial's last attempt logged to."""
    content = _read(folder / RUN)
    return content and content["run_id"]


def write_run_id(folder: Path, run_id: str | None) -> None:
    _write(folder / RUN, {"run_id": run_id})


def has_begun(folder: Path) -> bool:
    """Whether the trial's work has begun in any attempt."""
    return (folder / RUN).exists()


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(content, default=str))
