"""The loop of a sweep: trials that fail, are refused or pruned, or whose jobs are lost, and batches of them."""

from __future__ import annotations

import csv
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support.fake_sweep import STEPS, Table, grid_plan, open_study, plan, steps, sweep, table

from oar_lightning.common.locks import FileLock
from oar_lightning.sweep.loop import MAX_LOST, LauncherFailed, TooManyFailures, TrialRefused, run_sweep
from oar_lightning.sweep.study import Claim, SweepStudy
from oar_lightning.sweep.trial import Result, write_result, write_run_id


def failing(number: int, reason: str = "RuntimeError: no") -> object:
    return lambda claim: Result("failed", reason=reason) if claim.number == number else None


def test_a_failed_trial_is_recorded_with_its_reason_and_the_sweep_goes_on(tmp_path: Path) -> None:
    study = sweep(tmp_path, plan(4), ending=failing(1))
    assert [t.state for t in study.trials()] == [TrialState.COMPLETE, TrialState.FAIL] + [TrialState.COMPLETE] * 2
    rows = list(csv.DictReader(table(study).splitlines()))
    assert (rows[1]["state"], rows[1]["reason"], rows[1]["objective"]) == ("failed", "RuntimeError: no", "")
    assert len(sweep(tmp_path, plan(4)).trials()) == 4, "started again, there is nothing left to do"


@pytest.mark.parametrize("objective", [float("nan"), float("inf"), None])
def test_an_objective_that_is_no_number_is_a_failure(objective: float | None, tmp_path: Path) -> None:
    metrics = {} if objective is None else {"objective": objective}
    study = sweep(tmp_path, plan(2), ending=lambda claim: Result("complete", metrics) if claim.number == 0 else None)
    assert [t.state for t in study.trials()] == [TrialState.FAIL, TrialState.COMPLETE]
    assert study.trials()[0].user_attrs["reason"] in ("objective is nan", "objective is inf") or objective is None


REFUSED = Result("refused", reason="policy.name=./nothing is no folder")


def test_settings_that_cannot_work_are_told_by_the_first_trial_and_leave_no_study(tmp_path: Path) -> None:
    """Nothing is recorded, and the corrected command, whose plan is another one, is not refused for it."""
    for batch in (1, 3):
        with pytest.raises(
            TrialRefused, match=r"^policy.name=./nothing is no folder \(trial 0, the first; nothing is recorded"
        ):
            sweep(tmp_path, plan(4), ending=lambda claim: REFUSED, batch=batch)
        assert not (tmp_path / "trials").exists()
    study = sweep(tmp_path, plan(4, settings=["a=2"]))
    assert [t.state for t in study.trials()] == [TrialState.COMPLETE] * 4


def test_a_trial_refused_after_another_has_a_result_is_a_failed_one(tmp_path: Path) -> None:
    study = sweep(tmp_path, plan(3), ending=lambda claim: REFUSED if claim.number == 1 else None)
    assert [t.state for t in study.trials()] == [TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]
    assert study.trials()[1].user_attrs["reason"] == REFUSED.reason
    batched = sweep(tmp_path / "batched", plan(3), ending=lambda claim: REFUSED if claim.number == 0 else None, batch=3)
    assert [t.state for t in batched.trials()] == [TrialState.FAIL, TrialState.COMPLETE, TrialState.COMPLETE]


def test_what_is_refused_for_every_trial_ends_the_sweep_and_costs_none(tmp_path: Path) -> None:
    """Also where others have a result: started again without the mistake, the sweep has all its trials."""
    of_all = Result("refused", reason="the content of data.train is another", of_all=True)
    for batch in (1, 3):
        folder = tmp_path / str(batch)
        with pytest.raises(TrialRefused, match=r"^the content of data\.train is another \(trial 1; it is not recorded\)"):
            sweep(folder, plan(3), ending=lambda claim: of_all if claim.number == 1 else None, batch=batch)
        study = sweep(folder, plan(3), batch=batch)
        assert [t.state for t in study.trials()] == [TrialState.COMPLETE] * 3


def test_a_trial_that_has_begun_stays_when_it_is_refused_at_another_start(tmp_path: Path) -> None:
    """Its checkpoint may be of hours, and the policy's folder be away for now."""
    before = open_study(tmp_path, plan(2))
    claim = before.claim()
    assert claim is not None
    write_run_id(claim.folder, None)
    (claim.folder / "checkpoint.json").write_text("2")
    claim.lock.release()  # its process dies
    with pytest.raises(TrialRefused):
        sweep(tmp_path, plan(2), ending=lambda claim: REFUSED)
    assert (tmp_path / "trials" / "status").read_text() == "FAILED"
    study = sweep(tmp_path, plan(2))
    assert [t.state for t in study.trials()] == [TrialState.COMPLETE] * 2
    assert study.trials()[0].params == dict(claim.values)
    assert steps(study)[0] == ["2", "3"]


@pytest.mark.parametrize("batch", [1, 2])
def test_so_it_does_where_others_have_results(batch: int, tmp_path: Path) -> None:
    def ending(claim: Claim) -> Result | None:
        if claim.number == 0:
            return None
        write_run_id(claim.folder, None)
        (claim.folder / "checkpoint.json").write_text("2")
        return REFUSED

    with pytest.raises(TrialRefused, match=r"is no folder \(trial 1; it is not recorded, and keeps what is in .*trial_0001\)"):
        sweep(tmp_path, plan(3), ending=ending, batch=batch)
    assert [t.state for t in open_study(tmp_path, plan(3)).finished()] == [TrialState.COMPLETE]
    study = sweep(tmp_path, plan(3), batch=batch)
    assert [t.state for t in study.trials()] == [TrialState.COMPLETE] * 3
    assert steps(study)[1][-2:] == ["2", "3"], "from its checkpoint"


def test_the_last_of_two_processes_with_a_mistake_leaves_no_study(tmp_path: Path) -> None:
    kept: list[int] = []

    def beside(claim: Claim) -> Result:
        with pytest.raises(TrialRefused):
            sweep(tmp_path, plan(4), ending=lambda claim: REFUSED)
        kept.append(len(open_study(tmp_path, plan(4)).trials()))
        return REFUSED

    open_study(tmp_path, plan(4))  # by whichever was first
    with pytest.raises(TrialRefused):
        sweep(tmp_path, plan(4), ending=beside)
    assert kept == [2], "while the other one was at work"
    assert not list(tmp_path.glob("trials/trial_*"))
    study = sweep(tmp_path, plan(4, settings=["a=2"]))
    assert [t.state for t in study.trials()] == [TrialState.COMPLETE] * 4


def test_a_study_that_stays_is_closed_before_another_process_may_remove_it(tmp_path: Path) -> None:
    study, closed = open_study(tmp_path, plan(2)), []
    other = study.claim()
    assert other is not None

    class Closing(Table):
        def close(self, study: SweepStudy, status: str) -> None:
            closed.append((status, FileLock(study.folder / "study.lock").acquire(wait=False)))

    def refused(claims: Sequence[Claim]) -> Mapping[int, BaseException]:
        write_result(claims[0].folder, REFUSED)
        return {}

    with pytest.raises(TrialRefused):
        run_sweep(open_study(tmp_path, plan(2)), refused, Closing())
    assert closed == [("FAILED", False)]


def test_a_result_that_no_sweep_has_recorded_stays_where_a_study_is_not_discarded(tmp_path: Path) -> None:
    study = open_study(tmp_path, plan(1))
    claim = study.claim()
    assert claim is not None
    write_run_id(claim.folder, None)
    write_result(claim.folder, Result("complete", {"objective": 0.5}))
    claim.lock.release()
    assert not study.discard()  # as where MLflow cannot be reached
    assert sweep(tmp_path, plan(1)).trials()[0].value == 0.5


def test_what_others_keep_in_the_study_s_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "notes.txt").write_text("mine")
    with pytest.raises(TrialRefused):
        sweep(tmp_path, plan(2), ending=lambda claim: REFUSED)
    assert [path.name for path in (tmp_path / "trials").iterdir()] == ["notes.txt"]


def test_too_many_failures_end_the_sweep_and_a_retry_goes_on(tmp_path: Path) -> None:
    choices = {"x": [0, 1, 2, 3], "y": [0]}
    broken = lambda claim: Result("failed", reason="RuntimeError: no") if claim.values["x"] < 3 else None  # noqa: E731
    with pytest.raises(TooManyFailures, match=r"3 of 4 trials failed.*max_failure_rate=0\.5.*trial 2: RuntimeError: no"):
        sweep(tmp_path, grid_plan(choices), ending=broken)
    assert (tmp_path / "trials" / "status").read_text() == "FAILED"
    with pytest.raises(TooManyFailures):
        sweep(tmp_path, grid_plan(choices))
    study = sweep(tmp_path, grid_plan(choices, retry_failed=True))
    assert sorted(t.params["x"] for t in study.counted()) == [0, 1, 2, 3]
    assert {t.state for t in study.counted()} == {TrialState.COMPLETE}
    assert [t.user_attrs.get("retry_of") for t in study.trials()] == [None, None, None, 0, 1, 2, None]


def test_a_pruned_trial_counts_as_one(tmp_path: Path) -> None:
    study = sweep(tmp_path, plan(3), ending=lambda claim: Result("pruned", reason="late") if claim.number == 0 else None)
    assert [t.state for t in study.trials()] == [TrialState.PRUNED, TrialState.COMPLETE, TrialState.COMPLETE]


def test_a_batch_is_claimed_at_once(tmp_path: Path) -> None:
    study = sweep(tmp_path, plan(5), batch=2)
    assert len(study.finished()) == 5


def test_a_lost_job_of_a_batch_is_started_again_and_the_results_of_the_others_count(tmp_path: Path) -> None:
    lost = iter([True])
    study = sweep(tmp_path, plan(4), batch=3, is_lost=lambda claim: claim.number == 1 and next(lost, False))
    assert [t.state for t in study.trials()] == [TrialState.COMPLETE] * 4
    assert [t.user_attrs["attempts"] for t in study.trials()] == [1, 2, 1, 1]
    assert steps(study) == [[str(i) for i in range(STEPS)]] * 4


def test_a_trial_whose_job_is_lost_each_time_has_failed(tmp_path: Path) -> None:
    study = sweep(tmp_path, plan(3), batch=2, is_lost=lambda claim: claim.number == 0)
    assert [t.state for t in study.trials()] == [TrialState.FAIL] + [TrialState.COMPLETE] * 2
    first = study.trials()[0].user_attrs
    assert (first["attempts"], first["reason"]) == (MAX_LOST, "LauncherFailed: UncompletedJobError: no result file")


def test_the_results_of_a_batch_are_awaited_where_its_launcher_fails(tmp_path: Path) -> None:
    """As if the other trial's process went on elsewhere: it holds the folder's lock, and has a result when it ends."""
    study, ends = open_study(tmp_path, plan(1)), []

    def launch(claims: Sequence[Claim]) -> Mapping[int, BaseException]:
        lock = FileLock(claims[0].folder / "run.lock")
        assert lock.acquire(wait=False)

        def end() -> None:
            write_result(claims[0].folder, Result("complete", {"objective": 0.5}))
            ends.append(claims[0].number)
            lock.release()

        threading.Timer(0.2, end).start()
        raise LauncherFailed("no result file")

    run_sweep(study, launch, Table())
    assert (ends, study.trials()[0].value) == ([0], 0.5)
