"""Studies: killed at any moment, worked on by several processes, with failing trials."""

from __future__ import annotations

import csv
import multiprocessing
import random
import signal
import time
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, UniformDistribution
from optuna.trial import TrialState
from support.fake_sweep import STEPS, grid_plan, open_study, plan, steps, sweep, table

from oar_lightning.common.config_check import ConfigError
from oar_lightning.sweep.plan import Objective
from oar_lightning.sweep.storage import SweepStorage
from oar_lightning.sweep.study import IDENTITY, Claim, SweepStudy
from oar_lightning.sweep.trial import Pruning, Result, write_result

forked = multiprocessing.get_context("fork")


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


def test_an_identity_that_a_kill_cut_off_is_written_anew_or_told(tmp_path: Path) -> None:
    folder = open_study(tmp_path, plan(1)).folder
    (folder / IDENTITY).write_text("")
    with pytest.raises(ConfigError, match="do not belong together"):  # of a study that has one
        open_study(tmp_path, plan(1))
    (tmp_path / "optuna.db").unlink()
    assert open_study(tmp_path, plan(1)).identity
    sweep(tmp_path, plan(1))
    (folder / IDENTITY).write_text("")
    with pytest.raises(ConfigError, match=r"study\.json is damaged \(.*write .* into it, or set hydra\.sweeper\.folder"):
        open_study(tmp_path, plan(1))


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
    open_study(tmp_path, plan(configs={"x": {"update.group_size": 4, "gone": 1, "trainer.betas": (0.9, 0.99)}}))
    same = {"update.group_size": 4, "new": 2, "trainer.betas": [0.9, 0.99]}
    open_study(tmp_path, plan(configs={"x": same}))
    with pytest.raises(ConfigError, match=r"fake was begun with other settings .*: update\.group_size=8 \(then 4\); give"):
        open_study(tmp_path, plan(configs={"x": same | {"update.group_size": 8}}))


def test_a_study_with_other_settings_in_the_file_of_a_later_choice_is_refused(tmp_path: Path) -> None:
    """Of settings that the first choice has alike, otherwise, or not at all."""
    first = {"scorer.name": "a", "scorer.draws": 1, "lr": 1}
    other = {"scorer.name": "b", "scorer.draws": 1, "scorer.fill": "pad"}
    open_study(tmp_path, plan(configs={"scorer=a": first, "scorer=b": other}))
    open_study(tmp_path, plan(configs={"scorer=a": first | {"new": 1}, "scorer=b": other | {"newer": 2}}))
    for changed, shown in (({"scorer.draws": 8}, "draws=8 .then 1"), ({"scorer.fill": "mean"}, "fill=mean .then pad")):
        with pytest.raises(ConfigError, match=rf"in its sweep file or the config with scorer=b: scorer\.{shown}\); give"):
            open_study(tmp_path, plan(configs={"scorer=a": first, "scorer=b": other | changed}))


def test_a_grid_goes_on_in_its_order_alone(tmp_path: Path) -> None:
    """Its points are taken by their place: in another order some would be run twice and others never."""
    choices = {"x": CategoricalDistribution([1, 2]), "y": CategoricalDistribution([1, 2])}
    turned = dict(reversed(choices.items()))
    open_study(tmp_path / "grid", plan(space=choices, search={"sampler": "grid"}))
    with pytest.raises(ConfigError, match=r"its parameters were \['x', 'y'\] and are now \['y', 'x'\]; repeat the first"):
        open_study(tmp_path / "grid", plan(space=turned, search={"sampler": "grid"}))
    open_study(tmp_path / "drawn", plan(space=choices))
    open_study(tmp_path / "drawn", plan(space=turned))  # draws are by name


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database\n" * 100)
    with pytest.raises(ConfigError, match=r"sweeper\.storage=.*notes\.txt cannot be used .*name another file, or remove it"):
        SweepStorage(tmp_path / "notes.txt")


@pytest.mark.parametrize("name", ["a?b.db", "a%20b.db"])
def test_a_path_that_an_address_would_take_for_another_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"sweeper\.storage=.*with \? or %-codes .* set hydra\.sweeper\.storage to"):
        SweepStorage(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_database_may_be_given_as_an_address_of_a_file_but_of_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert SweepStorage(f"sqlite:///{tmp_path}/a.db").path == tmp_path / "a.db"
    assert SweepStorage("sqlite:///b.db").path == tmp_path / "b.db"
    made = sorted(path.name for path in tmp_path.iterdir())
    for address in ("postgresql://ann:secret@host/studies", "mysql+pymysql://ann:secret@host/x", "sqlite://"):
        with pytest.raises(ConfigError, match=r"sweeper\.storage=(postgresql|mysql\+pymysql|sqlite)://\.\.\.: .*path$") as told:
            SweepStorage(address)
        assert "secret" not in str(told.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == made
