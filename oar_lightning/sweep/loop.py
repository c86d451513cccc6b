"""The loop of a sweep: claim, launch, record and publish trials until none is missing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from oar_lightning.common.messages import named_line
from oar_lightning.common.scopes import sigterm_as_exit
from oar_lightning.sweep.process import await_trial
from oar_lightning.sweep.study import Claim, SweepStudy
from oar_lightning.sweep.trial import Result, has_begun, read_run_id

log = logging.getLogger(__name__)

POLL_S = 1.0

MAX_LOST = 3
"""So often a trial may end without a result because its launcher failed, before it counts as failed."""

Launch = Callable[[Sequence[Claim]], Mapping[int, BaseException]]
"""Runs claimed trials to their end; returns the errors of those that raised one, by trial number. Raises `LauncherFailed` where
it cannot tell whose an error is."""


class Publish(Protocol):
    """Publishes the study outside its database, as MLflow runs."""

    parent_run_id: str | None

    def update(self, study: SweepStudy) -> None:
        """Bring the published state up to date."""

    def discard(self) -> None:
        """Remove what was published of a study that was discarded."""

    def close(self, study: SweepStudy, status: str) -> None:
        """Make the last update, with the sweep's final status: FINISHED, FAILED or KILLED."""


class LauncherFailed(RuntimeError):
    """Raised where a launcher gives up a whole batch, as submitit does where a single job is lost; others may be at work."""


class TrialRefused(RuntimeError):
    """Raised where the first trials' settings or those of all cannot work, which is the command's mistake and no result."""


class TooManyFailures(RuntimeError):
    """Raised where more trials failed than the sweep allows."""


def run_sweep(study: SweepStudy, launch: Launch, publish: Publish, batch: int = 1) -> None:
    """Run the missing trials, `batch` at a time. Trials of other processes are awaited, and taken over where these die.

    Raises:
        TooManyFailures: where the study has more failed trials than it allows.
        TrialRefused: where no trial has a result and those that were started have settings that cannot work, where what
            they were refused for holds for every trial, or where a trial was refused that had begun before. Nothing stays of
            a study of which no trial has begun, once the last process ends that works on it.
    """
    status: str | None = "KILLED"
    try:
        with sigterm_as_exit():
            publish.update(study)
            while True:
                if (failure := study.failure()) is not None:
                    status = "FAILED"
                    raise TooManyFailures(failure)
                if not _work(study, launch, publish, batch):
                    if study.is_complete():
                        break
                    time.sleep(POLL_S)
        status = "FINISHED"
    except TrialRefused:
        status = None
        if study.discard(keep=lambda: publish.close(study, "FAILED")):
            publish.discard()
        raise
    finally:
        if status is not None:
            publish.close(study, status)


def _work(study: SweepStudy, launch: Launch, publish: Publish, batch: int) -> bool:
    """Claim and run one batch; False where there was nothing to claim."""
    claims: list[Claim] = []
    try:
        while len(claims) < batch and (claim := study.claim()) is not None:
            claims.append(claim)
        # a trial that ended after its sweep had died has its result already
        waiting = [claim for claim in claims if study.result(claim) is None]
        for claim in waiting:
            study.hand_out(claim, publish.parent_run_id)
        errors: Mapping[int, BaseException] = {}
        lost: LauncherFailed | None = None
        try:
            errors = launch(waiting) if waiting else {}
        except LauncherFailed as failure:
            lost = failure
        if lost is not None:
            for claim in claims:
                await_trial(claim.folder)
        results = [study.result(claim) for claim in claims]
        refused = {c.number: r for c, r in zip(claims, results, strict=True) if r is not None and r.state == "refused"}
        begun = [claim.number for claim in claims if claim.number in refused and has_begun(claim.folder)]
        # what has begun was not refused then: something else has changed, and what it has trained is not given up
        ending = next((number for number, result in refused.items() if result.of_all or number in begun), None)
        if refused and len(refused) == len(claims) and not study.finished():
            first = claims[0].number
            raise TrialRefused(f"{refused[first].reason} (trial {first}, the first; nothing is recorded)")
        for claim, result in zip(claims, results, strict=True):
            if ending is not None and claim.number in refused:
                continue
            if result is None and lost is not None and study.count_lost(claim) < MAX_LOST:
                log.warning("trial %d has ended without a result (%s); it is started again", claim.number, lost)
                continue
            if result is None:
                error = errors.get(claim.number, lost)
                result = Result("failed", reason=named_line(error) if error else "the trial ended without a result")
            study.record(claim, result, {"run_id": read_run_id(claim.folder)})
            _log_result(study, claim, result)
        if ending is not None:
            kept = f", and keeps what is in {study.trial_folder(ending)}" if ending in begun else ""
            raise TrialRefused(f"{refused[ending].reason} (trial {ending}; it is not recorded{kept})")
    finally:
        for claim in claims:
            claim.lock.release()
    if claims:
        publish.update(study)
    return bool(claims)


def _log_result(study: SweepStudy, claim: Claim, result: Result) -> None:
    result = study.judged(result)
    shown = ", ".join(f"{o.metric} {result.metrics[o.metric]:.4g}" for o in study.plan.objectives if o.metric in result.metrics)
    swept = " ".join(f"{k}={v}" for k, v in claim.swept.items())
    level = logging.WARNING if result.state in ("failed", "refused") else logging.INFO
    done = f"{len(study.finished())}/{study.plan.n_trials}"
    log.log(level, "trial %d %s (%s): %s; %s", claim.number, result.state, swept, result.reason or shown, done)
