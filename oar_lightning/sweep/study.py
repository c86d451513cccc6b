"""The study of a sweep: its missing trials, their claims by processes, and their results."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import shutil
import uuid
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.locks import FileLock
from oar_lightning.common.outputs import replace_file
from oar_lightning.sweep.plan import Plan
from oar_lightning.sweep.samplers import AFTER, POINT, RETRY_OF, draw
from oar_lightning.sweep.storage import SweepStorage
from oar_lightning.sweep.trial import Result, Ticket, forget_result, has_begun, read_result, write_ticket

IDENTITY = "study.json"

PUBLISH_LOCK = "publish.lock"

# hydra-optuna-sweeper makes distributions that optuna has renamed since
warnings.filterwarnings("ignore", category=FutureWarning, module="optuna")
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


@dataclass(frozen=True)
class Claim:
    """A trial that this process works on while it holds the lock."""

    number: int
    values: Mapping[str, Any]
    swept: Mapping[str, Any]
    folder: Path
    lock: FileLock


class SweepStudy:
    """An Optuna study and its folder of trials, shared by any number of processes on one machine.

    A trial is RUNNING from its claim to its record, and its `claim.lock` is held for that time. A RUNNING trial whose lock is
    free thus belongs to a process that died: it is claimed again, with the same number, parameters and folder.
    """

    def __init__(self, plan: Plan, storage: SweepStorage, folder: Path) -> None:
        self.plan = plan
        self.storage = storage
        self.folder = folder
        self._lock = FileLock(folder / "study.lock")
        with self._lock:
            plan.check_directions(storage)
            self.study = optuna.create_study(
                study_name=plan.name,
                storage=storage,
                directions=[o.direction for o in plan.objectives],
                load_if_exists=True,
            )
            self.identity = self._identify()
            plan.check_same(self.study)
            if plan.retry_failed:
                self._retry_failed()

    def claim(self) -> Claim | None:
        """The next trial to run: one that a dead process left unfinished, else a new one; None where all have been begun."""
        with self._lock:
            for trial in self.trials():
                if not trial.state.is_finished() and (lock := self.take_over(trial)) is not None:
                    return self._claimed(trial.number, trial._trial_id, lock)
            if len(self.counted()) >= self.plan.n_trials:
                return None
            number = len(self.trials())
            lock = self._trial_lock(number)
            if not lock.acquire(wait=False):
                raise RuntimeError(f"{lock.path} is held by a process of another study; set hydra.sweeper.folder")
            return self._claimed(number, self.storage.create_new_trial(self.study._study_id), lock)

    def record(self, claim: Claim, result: Result, attributes: Mapping[str, Any]) -> None:
        """Write a claimed trial's result to the study; the trial is then final."""
        result = self.judged(result)
        trial_id = self._trial_id(claim.number)
        stored = {**attributes, "metrics": dict(result.metrics), "reason": result.reason}
        for key, value in stored.items():
            self.storage.set_trial_user_attr(trial_id, key, value)
        state = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}.get(result.state, TrialState.FAIL)
        values = [result.metrics[o.metric] for o in self.plan.objectives] if result.state == "complete" else None
        self.study.sampler = self.plan.sampler(claim.number, AFTER)
        self.study.tell(claim.number, values, state)
        claim.lock.release()

    def count_lost(self, claim: Claim) -> int:
        """Count that a claimed trial has ended without a result by no fault that is known; returns how often it has."""
        trial_id = self._trial_id(claim.number)
        lost = int(self.storage.get_trial(trial_id).user_attrs.get("lost", 0)) + 1
        self.storage.set_trial_user_attr(trial_id, "lost", lost)
        return lost

    def judged(self, result: Result) -> Result:
        """The result, turned into a failed one where it is complete but has no usable objectives."""
        if result.state != "complete":
            return result
        for objective in self.plan.objectives:
            value = result.metrics.get(objective.metric)
            if value is None:
                known = ", ".join(sorted(result.metrics)) or "none"
                reason = f"the trial has no final metric {objective.metric}; it has: {known}"
                return Result("failed", result.metrics, reason)
            if not math.isfinite(value):
                return Result("failed", result.metrics, f"{objective.metric} is {value}")
        return result

    def trials(self) -> list[FrozenTrial]:
        """All trials, sorted by number."""
        return sorted(self.study.get_trials(deepcopy=False), key=lambda t: t.number)

    def counted(self) -> list[FrozenTrial]:
        """All trials but those that a retry has replaced."""
        trials = self.trials()
        replaced = {t.user_attrs[RETRY_OF] for t in trials if RETRY_OF in t.user_attrs}
        return [t for t in trials if t.number not in replaced]

    def finished(self) -> list[FrozenTrial]:
        return [t for t in self.counted() if t.state.is_finished()]

    def is_complete(self) -> bool:
        return len(self.finished()) >= self.plan.n_trials

    def failure(self) -> str | None:
        """Why the sweep cannot go on: more failures than allowed; None while it can."""
        failed = [t for t in self.counted() if t.state == TrialState.FAIL]
        allowed = self.plan.max_failure_rate * self.plan.n_trials
        if len(failed) <= allowed:
            return None
        reasons = "; ".join(f"trial {t.number}: {t.user_attrs.get('reason')}" for t in failed[-3:])
        return (
            f"{len(failed)} of {self.plan.n_trials} trials failed, more than hydra.sweeper.max_failure_rate="
            f"{self.plan.max_failure_rate} allows ({reasons}); remove the cause and start again with "
            "hydra.sweeper.retry_failed=true, or raise the rate"
        )

    def discard(self, keep: Callable[[], None] = lambda: None) -> bool:
        """Remove the study and its files where no trial of it has begun and no other process works on it. Else its trials
        without a record are left to be run again, and `keep` is called, before another process may remove the study. Returns
        whether it was removed."""
        with self._lock:
            trials = self.trials()
            locks = [lock for trial in trials if not trial.state.is_finished() and (lock := self.take_over(trial)) is not None]
            folders = [lock.path.parent for lock in locks]
            unused = len(locks) == len(trials) and not any(has_begun(folder) for folder in folders)
            try:
                for folder in folders:
                    if (result := read_result(folder)) is not None and result.state == "refused":
                        forget_result(folder)
                if unused:
                    optuna.delete_study(study_name=self.plan.name, storage=self.storage)
                    for folder in (self.folder / "study", *folders):
                        shutil.rmtree(folder, ignore_errors=True)
                    for file in (self.folder / IDENTITY, self.folder / PUBLISH_LOCK, self._lock.path):
                        file.unlink(missing_ok=True)
                else:
                    keep()
            finally:
                for lock in locks:
                    lock.release()
        if unused:
            with contextlib.suppress(OSError):  # it may hold something else
                self.folder.rmdir()
        return unused

    def trial_folder(self, number: int) -> Path:
        return self.folder / f"trial_{number:04d}"

    # -- claiming ----------------------------------------------------------------------------------------------------

    def _trial_lock(self, number: int) -> FileLock:
        return FileLock(self.trial_folder(number) / "claim.lock")

    def take_over(self, trial: FrozenTrial) -> FileLock | None:
        """The acquired lock of an unfinished trial that no process works on; None for any other trial."""
        lock = self._trial_lock(trial.number)
        if not lock.acquire(wait=False):
            return None
        if self.storage.get_trial(trial._trial_id).state.is_finished():  # recorded after it was listed
            lock.release()
            return None
        return lock

    def _trial_id(self, number: int) -> int:
        return int(self.storage.get_trial_id_from_study_id_trial_number(self.study._study_id, number))

    def _claimed(self, number: int, trial_id: int, lock: FileLock) -> Claim:
        try:
            self.storage.set_trial_state(trial_id, TrialState.RUNNING)
            values = self._point(number, trial_id)
            for name, distribution in self.plan.space.items():
                self.storage.set_trial_param(trial_id, name, distribution.to_internal_repr(values[name]), distribution)
            swept = self.plan.describe(values)
            self.storage.set_trial_user_attr(trial_id, "swept", swept)
        except BaseException:
            lock.release()
            raise
        return Claim(number, values, swept, self.trial_folder(number), lock)

    def _point(self, number: int, trial_id: int) -> dict[str, Any]:
        """A trial's values, which are stored whole before any is a parameter: a process may die between two of these."""
        trial, space = self.storage.get_trial(trial_id), self.plan.space
        point = {**trial.system_attrs.get(POINT, {}), **trial.params}
        if not space.keys() <= point.keys():
            point = draw(self.study, trial_id, space, functools.partial(self.plan.sampler, number)) | point
            self.storage.set_trial_system_attr(trial_id, POINT, point)
        return {name: point[name] for name in space}

    def hand_out(self, claim: Claim, parent_run_id: str | None) -> None:
        """Write the ticket of a trial that is about to start, or to start again."""
        trial_id = self._trial_id(claim.number)
        attempt = self.storage.get_trial(trial_id).user_attrs.get("attempts", 0) + 1
        self.storage.set_trial_user_attr(trial_id, "attempts", attempt)
        path = str(self.storage.path)
        pruning = self.plan.pruning
        ticket = Ticket(self.plan.name, claim.number, attempt, claim.swept, path, parent_run_id, pruning)
        write_ticket(claim.folder, ticket)

    @staticmethod
    def result(claim: Claim) -> Result | None:
        """The result in a claimed trial's folder, if any: the trial may have ended after its sweep had died."""
        return read_result(claim.folder)

    # -- opening -----------------------------------------------------------------------------------------------------

    def _identify(self) -> str:
        """The study's id, which must be the same in the database and in the folder."""
        path = self.folder / IDENTITY
        in_folder = self._identity_in(path) if path.is_file() else None
        in_study = self.study.user_attrs.get("id")
        if in_study is None and in_folder is None:
            in_study = in_folder = uuid.uuid4().hex
            replace_file(path, json.dumps({"id": in_study, "study": self.plan.name}))
            self.study.set_user_attr("id", in_study)
        elif in_study is None and in_folder is not None and not any(self.folder.glob("trial_*/ticket.json")):
            in_study = in_folder  # a process was killed between writing the file and the attribute
            self.study.set_user_attr("id", in_study)
        if in_study != in_folder:
            raise ConfigError(
                f"study {self.plan.name} in {self.storage.path} and the folder {self.folder} do not belong together; set "
                "hydra.sweeper.folder to the study's own, or begin anew with another hydra.sweeper.study_name"
            )
        assert in_study is not None
        return str(in_study)

    def _identity_in(self, path: Path) -> str | None:
        """None where the file is damaged and no trial was begun.

        Raises:
            ConfigError: where it is damaged, and trials are there.
        """
        try:
            return str(json.loads(path.read_text(encoding="utf-8"))["id"])
        except (ValueError, KeyError, TypeError) as error:
            if not any(self.folder.glob("trial_*/ticket.json")):
                return None
            raise ConfigError(
                f"{path} is damaged ({error}); it holds the study's id, which {self.storage.path} has as the attribute `id` of "
                f'study {self.plan.name}: write {{"id": ...}} into it, or set hydra.sweeper.folder to another one'
            ) from error

    def _retry_failed(self) -> None:
        for trial in self.counted():
            if trial.state == TrialState.FAIL:
                template = create_trial(
                    state=TrialState.WAITING,
                    user_attrs={RETRY_OF: trial.number},
                    system_attrs={**trial.system_attrs, POINT: trial.params},  # what its sampler noted, too: its generation
                )
                self.storage.create_new_trial(self.study._study_id, template_trial=template)
