"""Studies: killed at any moment, worked on by several processes, with failing trials."""

from __future__ import annotations

import csv
import multiprocessing
import random
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from optuna.distributions import UniformDistribution
from optuna.trial import TrialState
from support.fake_sweep import STEPS, Table, grid_plan, open_study, plan, sweep

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.locks import FileLock
from oar_lightning.sweep.loop import MAX_LOST, LauncherFailed, TooManyFailures, TrialRefused, run_sweep
from oar_lightning.sweep.plan import Objective
from oar_lightning.sweep.storage import SweepStorage
from oar_lightning.sweep.study import Claim, SweepStudy
from oar_lightning.sweep.trial import Pruning, Result, write_result

forked = multiprocessing.get_context("fork")


def table(study: SweepStudy) -> str:
    return (study.folder / "table.csv").read_text()


def steps(study: SweepStudy) -> list[list[str]]:
    return [(study.trial_folder(t.number) / "steps").read_text().split() for t in study.trials()]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> SweepStudy:
    return sweep(tmp_path_factory.mktemp("whole"))


def test_a_sweep_runs_its_trials_once(uninterrupted: SweepStudy) -> None:
    trials = uninterrupted.trials()
    assert [(t.number, t.state) for t in trials] == [(i, TrialState.COMPLETE) for i in range(12)]
    assert len({t.params["x"] for t in trials}) == 12
    assert steps(uninterrupted) == [[str(i) for i in range(STEPS)]] * 12
    assert len(list(csv.DictReader(table(uninterrupted).splitlines()))) == 12
    # TPE's later trials are drawn by what the earlier ones found
    late = [abs(t.params["x"] - 0.3) for t in trials[6:]]
    early = [abs(t.params["x"] - 0.3) for t in trials[:4]]
    assert sum(late) / len(late) < sum(early) / len(early)


@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 20))])
def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(seed: int, tmp_path: Path, uninterrupted: SweepStudy) -> None:
    moments = random.Random(seed)
    for _ in range(4):
        process = forked.Process(target=sweep, args=(tmp_path, plan(), 0.01))
        process.start()
        time.sleep(moments.uniform(0.05, 1.0))
        process.kill()
        process.join()
    study = sweep(tmp_path)
    assert [t.state for t in study.trials()] == [TrialState.COMPLETE] * 12
    assert table(study) == table(uninterrupted)
    for done in steps(study):  # a kill between a step and its checkpoint repeats that step; nothing else is done twice
        assert sorted(set(done), key=int) == [str(i) for i in range(STEPS)]
    assert sum(map(len, steps(study))) <= 12 * STEPS + 4


def test_a_trial_whose_sweep_died_after_its_end_is_recorded_without_running_it_again(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    claim = study.claim()
    assert claim is not None
    write_result(claim.folder, Result("complete", {"objective": 0.5}))
    claim.lock.release()  # as the kernel does
    finished = sweep(tmp_path, plan(2))
    assert finished.trials()[0].value == 0.5
    assert not (claim.folder / "steps").exists()


def test_a_half_sampled_trial_gets_the_parameters_it_would_have_got(tmp_path: Path, uninterrupted: SweepStudy) -> None:
    study = open_study(tmp_path)
    number = len(study.trials())
    trial_id = study.storage.create_new_trial(study.study._study_id)
    first = study.plan.space["x"]
    study.storage.set_trial_param(trial_id, "x", uninterrupted.trials()[number].params["x"], first)
    claim = study.claim()
    assert claim is not None
    assert (claim.number, claim.values) == (0, uninterrupted.trials()[0].params)


def test_two_processes_share_a_study(tmp_path: Path) -> None:
    workers = [forked.Process(target=sweep, args=(tmp_path, plan(), 0.02)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    study = open_study(tmp_path)
    assert [t.state for t in study.trials()] == [TrialState.COMPLETE] * 12
    assert steps(study) == [[str(i) for i in range(STEPS)]] * 12
    assert len({t.params["x"] for t in study.trials()}) == 12


def test_the_other_process_takes_over_what_a_killed_one_had(tmp_path: Path) -> None:
    stuck = forked.Process(target=sweep, args=(tmp_path, plan(3), 60.0))
    stuck.start()
    while not list(tmp_path.glob("trials/trial_0000/ticket.json")):
        time.sleep(0.01)
    other = forked.Process(target=sweep, args=(tmp_path, plan(3)))
    other.start()
    deadline = time.monotonic() + 30
    study = open_study(tmp_path, plan(3))
    while len(study.finished()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [t.state for t in study.trials()] == [TrialState.RUNNING, TrialState.COMPLETE, TrialState.COMPLETE]
    assert other.is_alive(), "it waits for the trial that another process has"
    stuck.kill()
    stuck.join()
    other.join(30)
    assert other.exitcode == 0
    assert [t.state for t in study.trials()] == [TrialState.COMPLETE] * 3


def test_sigterm_ends_a_sweep_in_an_orderly_way_and_leaves_its_trial_to_the_next_start(tmp_path: Path) -> None:
    process = forked.Process(target=sweep, args=(tmp_path, plan(2), 60.0))
    process.start()
    while not list(tmp_path.glob("trials/trial_0000/ticket.json")):
        time.sleep(0.01)
    process.terminate()
    process.join(30)
    assert process.exitcode == 128 + signal.SIGTERM
    assert (tmp_path / "trials" / "status").read_text() == "KILLED"
    study = sweep(tmp_path, plan(2))
    assert [(t.state, t.user_attrs["attempts"]) for t in study.trials()] == [(TrialState.COMPLETE, 2), (TrialState.COMPLETE, 1)]


def test_a_grid_takes_its_points_in_order_and_once(tmp_path: Path) -> None:
    choices = {"x": [0, 1], "y": [1, 2, 4]}
    study = sweep(tmp_path, grid_plan(choices))
    expected = [{"x": x, "y": y} for x in choices["x"] for y in choices["y"]]
    assert [t.params for t in study.trials()] == expected
    assert len(sweep(tmp_path, grid_plan(choices)).trials()) == 6


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


def test_a_study_that_was_there_before_keeps_its_trials_when_they_are_refused(tmp_path: Path) -> None:
    before = open_study(tmp_path, plan(2))
    claim = before.claim()
    assert claim is not None
    claim.lock.release()  # its process dies
    with pytest.raises(TrialRefused):
        sweep(tmp_path, plan(2), ending=lambda claim: REFUSED)
    assert (tmp_path / "trials" / "status").read_text() == "FAILED"
    study = sweep(tmp_path, plan(2))
    assert [t.state for t in study.trials()] == [TrialState.COMPLETE] * 2
    assert study.trials()[0].params == dict(claim.values)
    assert steps(study)[0] == [str(i) for i in range(STEPS)]


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": ["a=2"]}, r"its settings were \['a=1'\] and are now \['a=2'\]"),
        ({"space": {"x": UniformDistribution(0.0, 2.0)}}, "its space were"),
        ({"objectives": [Objective("objective", "minimize")]}, r"has the directions \['maximize'\], now \['minimize'\]"),
        ({"objectives": [Objective("greedy", "maximize")]}, "its objectives were"),
        ({"search": {"sampler": "grid"}}, "its search were"),
        ({"pruning": Pruning(True)}, "its pruning were"),
    ],
)
def test_a_study_that_was_begun_differently_is_refused(
    changes: dict[str, object], message: str, tmp_path: Path, uninterrupted: SweepStudy
) -> None:
    open_study(tmp_path)
    with pytest.raises(ConfigError, match=message):
        open_study(tmp_path, plan(**changes))
    assert len(open_study(tmp_path, plan(30)).trials()) == 0, "more trials may be asked for"


def test_a_study_whose_creation_was_killed_goes_on(tmp_path: Path) -> None:
    """Optuna creates a study in one transaction and sets its directions in a second one."""
    SweepStorage(tmp_path / "optuna.db").create_new_study(plan().name)
    study = open_study(tmp_path)
    assert [d.name for d in study.study.directions] == ["MAXIMIZE"]
    assert study.claim() is not None


def test_a_folder_of_another_study_is_refused(tmp_path: Path) -> None:
    sweep(tmp_path, plan(1))
    (tmp_path / "optuna.db").unlink()
    with pytest.raises(ConfigError, match="do not belong together"):
        open_study(tmp_path)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"n_trials": 0}, "hydra.sweeper.n_trials"),
        ({"max_failure_rate": 1.5}, "hydra.sweeper.max_failure_rate"),
        ({"space": {}}, "hydra.sweeper.params"),
        ({"objectives": []}, "hydra.sweeper.objectives"),
        (
            {"pruning": Pruning(enabled=True), "objectives": [Objective("time/total_s", "minimize")]},
            "hydra.sweeper.direction=minimize",
        ),
        (
            {"pruning": Pruning(enabled=True), "objectives": [Objective("a", "maximize"), Objective("b", "minimize")]},
            "hydra.sweeper.pruning",
        ),
    ],
)
def test_bad_plans_name_their_key(changes: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        plan(**changes)


def test_a_claim_of_a_trial_recorded_meanwhile_is_none(tmp_path: Path) -> None:
    study = open_study(tmp_path, plan(1))
    claim = study.claim()
    assert isinstance(claim, Claim)
    stale = study.trials()[0]
    study.record(claim, Result("complete", {"objective": 1.0}), {})
    assert study.take_over(stale) is None
    assert study.claim() is None


def test_a_study_with_other_settings_in_its_files_is_refused(tmp_path: Path) -> None:
    open_study(tmp_path, plan(first_config={"update.group_size": 4, "gone": 1, "trainer.betas": (0.9, 0.99)}))
    same = {"update.group_size": 4, "new": 2, "trainer.betas": [0.9, 0.99]}
    open_study(tmp_path, plan(first_config=same))
    with pytest.raises(ConfigError, match=r"fake was begun with other settings .*: update\.group_size=8 \(then 4\); give"):
        open_study(tmp_path, plan(first_config=same | {"update.group_size": 8}))


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database\n" * 100)
    with pytest.raises(ConfigError, match=r"sweeper\.storage=.*notes\.txt cannot be used .*name another file, or remove it"):
        SweepStorage(tmp_path / "notes.txt")
