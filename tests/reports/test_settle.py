"""The confirmatory study: tuning budgets, choosing, commands and the rule, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hydra import compose
from omegaconf import OmegaConf
from scipy.stats import t
from support.settle_runs import records, row, rules, tuning
from support.study_scripts import load_script

from oar_lightning.common.messages import named_line
from oar_lightning.reporting.runs import RunRecord
from oar_lightning.sweep.trial import Diverged

study = load_script("settle", "study")


RUN = [(task, arm) for task in rules.RATES for arm in rules.ARMS if task in rules.ONLY_ON.get(arm, rules.RATES)]
"""Tasks with the arms that may run on them."""


def setting_of(task: str, arm: str) -> Any:
    return (rules.settings_of(task, arm) or [rules.Setting("5e-5", "2.0" if arm != "grpo_higher" else "")])[0]


@pytest.mark.parametrize("arm", [arm for arm in rules.ARMS if arm not in rules.BORROWED])
@pytest.mark.parametrize("task", rules.RATES)
def test_every_arm_has_the_same_tuning_budget(task: str, arm: str) -> None:
    assert len(rules.settings_of(task, arm)) * len(rules.tuning_seeds(arm)) == 20


def test_an_arm_in_equal_time_has_no_updates_where_its_steps_were_not_timed() -> None:
    with pytest.raises(ValueError, match="turning_point_short is an arm of asides, graph, not of long_answer"):
        study.command("long_answer", "endpoint", rules.SHORT, rules.Setting("5e-5", "2.0"), (100,))


def test_an_arm_without_tuning_has_the_setting_of_another_one_at_a_higher_rate_where_that_is_asked() -> None:
    best_at = rules.Setting("1e-4", "1.0")
    rows = tuning("oar_g", lambda setting, seed: 0.6 if setting == best_at else 0.5)
    assert records.best(rows, "graph", "oar_g_boost_only") is None, "it is not run there"
    there = [
        row("tune", "oar_g", *setting, seed, 0.6 if setting == best_at else 0.5)._replace(task="asides")
        for setting in rules.settings_of("asides", "oar_g")
        for seed in rules.tuning_seeds("oar_g")
    ]
    assert records.best(there, "asides", "oar_g_boost_only") == best_at
    assert records.best(rows, "graph", "oar_g_higher") == rules.Setting("2e-4", "1.0")
    assert records.best(rows, "graph", "grpo_higher") is None, "GRPO is not tuned yet"
    assert all(max(rates, key=float) == rules.HIGHER[task] for task, rates in rules.RATES.items() if task in rules.HIGHER)


@pytest.mark.parametrize(
    ("low", "high", "same", "falls"),
    [
        (-1.9, 1.9, "yes", "no"),
        (-2.0, 1.0, "not settled", "not settled"),
        (2.0, 4.0, "no", "no"),
        (-5.0, -2.0, "no", "yes"),
        (-5.0, -0.1, "not settled", "yes"),
        (-1.0, 3.0, "not settled", "no"),
    ],
)
def test_the_rules_of_the_same_and_of_a_lead_that_falls(low: float, high: float, same: str, falls: str) -> None:
    assert rules.same_verdict(low, high) == same
    assert rules.falls_verdict(low, high) == falls


def test_seeds_of_tuning_are_not_reported() -> None:
    assert not set(rules.TUNING_SEEDS) & set(rules.ENDPOINT_SEEDS)
    assert (len(rules.ENDPOINT_SEEDS), len(rules.OTHER_SEEDS)) == (24, 12)


def test_the_best_setting_has_the_highest_mean_and_the_lower_rate_of_equal_ones() -> None:
    best_at = rules.Setting("1e-4", "1.0")
    rows = tuning("oar_g", lambda setting, seed: 0.6 if setting == best_at else 0.5)
    assert records.best(rows, "graph", "oar_g") == best_at
    assert records.best(tuning("grpo"), "graph", "grpo") == rules.Setting("5e-5", "")


def test_nothing_is_chosen_before_all_tuning_runs_are_there() -> None:
    rows = tuning("grpo")
    assert records.best(rows[:-1], "graph", "grpo") is None
    assert records.best(rows, "asides", "grpo") is None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 5.0, "yes"),
        (0.1, 1.0, "yes"),
        (-3.0, 1.9, "no"),
        (-3.0, -1.0, "no"),
        (-1.0, 2.0, "not settled"),
        (0.0, 3.0, "not settled"),
    ],
)
def test_the_rule(low: float, high: float, expected: str) -> None:
    assert rules.verdict(low, high) == expected


@pytest.mark.parametrize(("task", "arm"), RUN)
def test_a_sweep_is_found_again_by_its_name(task: str, arm: str) -> None:
    """Rows are read from the names of sweeps, which have tasks and arms with underscores in them."""
    for setting in rules.settings_of(task, arm) or [setting_of(task, arm)]:
        words = study.command(task, "endpoint", arm, setting, (100, 101))
        name = next(word for word in words if word.startswith("hydra.sweeper.study_name=")).partition("=")[2]
        tags, metrics = {"git_revision": "x", "seed": "100"}, {f"eval/{records.SETS[task]}/avg_at_4": 0.5}
        metrics |= {f"time/total_{phase}_s": 2.0 for phase in ("generate", "reward", "score", "update")}
        found = records.row_of(RunRecord("id", "name", "complete", "", 0, 1.0, tags, {}, metrics), name, {})
        assert found[:6] == (task, "endpoint", arm, setting.lr, setting.beta, 100)
        assert (found.step_s, found.score_s) == (8.0, 2.0)
        assert "evaluation.problems=1024" in words
        assert "evaluation.problems=1024" not in study.command(task, "tune", arm, setting, (50,))
        assert "evaluation.problems=1024" in study.command(task, "time", arm, setting, (100,)), "as long a run"


@pytest.mark.parametrize("arm", rules.GREEDY_ARMS)
def test_policies_that_decode_greedily_too_are_found_again(arm: str) -> None:
    setting = rules.settings_of(rules.GREEDY_TASK, arm)[0]
    words = study.command(rules.GREEDY_TASK, "greedy", arm, setting, rules.seeds_of("greedy", [arm]))
    assert {"evaluation.greedy=true", "evaluation.problems=1024"} < set(words)
    assert ("loss.entropy_coef=-0.1" in words) == (arm == rules.PENALTY)
    name = next(word for word in words if word.startswith("hydra.sweeper.study_name=")).partition("=")[2]
    metrics = {"eval/graph/avg_at_4": 0.5, "eval/graph/greedy": 0.75}
    run = RunRecord("id", "name", "complete", "", 0, 1.0, {"git_revision": "x", "seed": "200"}, {}, metrics)
    found = records.row_of(run, name, {})
    assert (*found[:6], found.greedy) == ("graph", "greedy", arm, *setting, 200, 0.75)
    assert not set(rules.GREEDY_SEEDS) & {*rules.TUNING_SEEDS, *rules.ENDPOINT_SEEDS}


def test_a_run_that_a_machine_ended_was_not_given_up(monkeypatch, caplog) -> None:
    """It would count with the accuracy of an early evaluation."""

    def ended(state: str, reason: str) -> RunRecord:
        sweep = "settle_asides_endpoint_oar_g_3e-4_1.0_from100"
        tags = {"git_revision": "x", "seed": "100", "sweep": sweep}
        return RunRecord(reason, "name", state, reason, 0, 1.0, tags, {}, {"eval/chain/avg_at_4": 0.2})

    reasons = {named_line(Diverged("accuracy fell")): True, named_line(RuntimeError("a worker did not start")): False}
    runs = [ended("complete", ""), *(ended("failed", reason) for reason in reasons)]
    monkeypatch.setattr(records, "MlflowClient", lambda uri: None)
    monkeypatch.setattr(records, "read_runs", lambda *_: (None, runs))
    monkeypatch.setattr(records, "read_curves", lambda *_: {})
    found, _ = records.read_store("sqlite:///none.db")
    assert [row.run_id for row in found] == ["", *(reason for reason, kept in reasons.items() if kept)]
    assert "left out, to be run again" in caplog.text


def test_a_table_survives_its_csv(tmp_path) -> None:
    rows = sorted(tuning("oar_g"))
    records.write_csv(tmp_path / "runs.csv", rows)
    assert records.read_csv(tmp_path / "runs.csv") == rows
    assert records.read_csv(tmp_path / "none.csv") == []


def test_of_runs_with_equal_settings_the_last_one_counts_not_the_best(tmp_path) -> None:
    first = row("endpoint", "oar_g", "1e-4", "2.0", 100, 0.6)
    again = first._replace(accuracy=0.5, run_id="again")
    records.write_csv(tmp_path / "runs.csv", [first, again])
    assert records.endpoint_runs(records.read_csv(tmp_path / "runs.csv"), "graph")["oar_g"][100] == again


def test_what_runs_csv_has_is_not_run_again(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may be lost, or be another machine's: what has ended is in the repository."""
    had = [*tuning("grpo"), *tuning("oar_g")[:-1], row("endpoint", "grpo", "5e-5", "", 100, 0.6)]
    records.write_csv(tmp_path / "runs.csv", had)
    started = []
    monkeypatch.setattr(study, "HERE", tmp_path)
    monkeypatch.setattr(study.subprocess, "run", lambda words, **_: started.append(" ".join(words)))
    with pytest.raises(SystemExit, match="oar_g: tuning runs are missing"):
        study.run("graph", ("grpo", "oar_g"), tmp_path / "store")
    assert len(started) == 2
    assert "seed=choice(51) hydra.sweeper.study_name=settle_graph_tune_oar_g_2e-4_1.0_from51" in started[0]
    assert "seed=choice(101,102" in started[1]
    assert "study_name=settle_graph_endpoint_grpo_5e-5_from101" in started[1]


def test_every_arm_has_a_family_in_the_checklist() -> None:
    sections = load_script("settle", "sections")
    assert {sections.SCORERS.get(arm, arm) for arm in rules.ARMS} <= sections.FAMILIES.keys()


def test_what_runs_csv_has_is_repeated_where_that_is_asked_for(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    records.write_csv(tmp_path / "runs.csv", tuning("grpo"))
    started = []
    monkeypatch.setattr(study, "HERE", tmp_path)
    monkeypatch.setattr(study.subprocess, "run", lambda words, **_: started.append(" ".join(words)))
    with pytest.raises(SystemExit, match="grpo: tuning runs are missing"):
        study.run("graph", ("grpo",), tmp_path / "store", repeat=True)
    assert len(started) == len(rules.settings_of("graph", "grpo"))


@pytest.mark.usefixtures("hydra_conf")
@pytest.mark.parametrize(
    ("task", "arm"), [pytest.param(*run, marks=[pytest.mark.slow] * bool(number % 3)) for number, run in enumerate(RUN)]
)
def test_an_arms_command_is_a_run_of_the_rules(task: str, arm: str) -> None:
    """The words of the command, without the sweeper's, make the config that README.md promises."""
    words = study.command(task, "endpoint", arm, setting_of(task, arm), (100,))[5:]
    cfg = compose("config", overrides=[word.replace("choice(100)", "100") for word in words if not word.startswith("hydra.")])
    steps = {
        "turning_point_short": {"asides": 88, "graph": 85},
        "turning_point_seldom": {"asides": 139, "graph": 133},
        **{arm: {"asides": 291, "graph": 302} for arm in ("grpo_longer", "oracle_longer", "turning_point_longer")},
        "turning_point_seldom_longer": {"asides": 253},
        "anchor_states_longer": {"asides": 285},
        "grpo_in_oar_g_time": {"long_answer": 203},
    }
    expected = (1024, 4, steps.get(arm, {}).get(task, 160), 100)
    assert (cfg.evaluation.problems, cfg.evaluation.samples, cfg.trainer.max_steps, cfg.seed) == expected
    assert cfg.optimizer.lr == 5e-5


@pytest.mark.usefixtures("hydra_conf")
@pytest.mark.parametrize("places", rules.PLACES, ids=lambda asked: asked.arm)
def test_the_control_of_places_differs_from_its_arm_by_the_order_of_the_scores_alone(places: Any) -> None:
    (control,) = places.others
    own, other = (
        OmegaConf.to_container(compose("config", overrides=["+variant=asides", *rules.ARMS[arm]]))
        for arm in (places.arm, control)
    )
    assert other["scorer"]["inner"] == own["scorer"]
    assert {key for key in own if own[key] != other[key]} == {"scorer"}


def test_the_power_of_a_lead_by_simulation() -> None:
    power = load_script("settle", "power")
    lead = power.smallest_lead(24, 2.0)
    drawn = np.random.default_rng(0).normal(lead, 2.0, (20_000, 24))
    low = drawn.mean(1) - t.ppf(0.975, 23) * drawn.std(1, ddof=1) / 24**0.5
    assert (low > 0).mean() == pytest.approx(0.8, abs=0.01)
