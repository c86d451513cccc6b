"""From runs to arms: what varies, what counts, what is compared with what."""

from __future__ import annotations

import itertools
import shlex

import pytest
from support.run_records import trial

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.ordering import natural
from oar_lightning.reporting.factors import ABSENT, label, level, ordered
from oar_lightning.reporting.figures.drawing import scale
from oar_lightning.reporting.page import about_results
from oar_lightning.reporting.runs import Curves
from oar_lightning.reporting.study import is_uniform, make_study
from oar_lightning.reporting.tables import results_table


def test_arms_are_the_swept_settings_without_the_seed() -> None:
    grid = [
        trial(0.5 + tau / 10, {"gate.tau": tau, "gate.beta": beta, "seed": seed})
        for seed, tau, beta in itertools.product([1, 0], [0.7, 0, 0.30000000000000004], [4, 2.0])
    ]
    study = make_study("grid", [], grid)
    assert study.factors == ("gate.tau", "gate.beta")
    taus_betas = [*itertools.product(["0", "0.3", "0.7"], ["2", "4"])]
    assert [arm.label for arm in study.arms] == [f"tau={tau} beta={beta}" for tau, beta in taus_betas]
    assert {tuple(run.seed for run in arm.runs) for arm in study.arms} == {("0", "1")}
    assert study.values(study.arms[-1]) == [0.57, 0.57]
    assert study.metric == "objective"
    assert study.baseline is None


def test_without_a_sweep_overrides_say_what_varies() -> None:
    runs = [
        trial(0.5, tags={"overrides": f"+experiment={name} seed={seed} name=x{seed} num_threads=1", "seed": str(seed)})
        for name in ("oar_g", "grpo")
        for seed in (0, 1)
    ]
    study = make_study("methods", [], runs)
    assert study.factors == ("experiment",)
    assert [arm.label for arm in study.arms] == ["grpo", "oar_g"], "uniform credit is the baseline and comes first"
    assert study.baseline is study.arms[0]


def test_an_experiment_with_another_scorer_is_not_without_credit() -> None:
    words = {"a": "+experiment=grpo scorer=oar_g", "b": "+experiment=oar_p", "c": "+experiment=grpo"}
    scorers = {"a": "oar_g", "b": "oar_p", "c": "uniform"}
    runs = {name: trial(0.5, tags={"overrides": line, "scorer": scorers[name]}) for name, line in words.items()}
    alone = make_study("x", [], [runs["a"], runs["b"]])
    assert alone.baseline is None
    assert not any(is_uniform(alone, arm) for arm in alone.arms)
    study = make_study("x", [], list(runs.values()))
    assert study.baseline is not None
    assert [run.run_id for run in study.baseline.runs] == [runs["c"].run_id]
    assert [is_uniform(study, arm) for arm in study.arms] == [True, False, False]


def test_a_default_is_read_from_the_parameters() -> None:
    given = trial(0.5, tags={"overrides": "gate.tau=0.7 scorer=oar_p"})
    default = trial(0.6, params={"gate.tau": "0.4"}, tags={"overrides": "", "scorer": "uniform"})
    study = make_study("x", [], [given, default])
    assert study.factors == ("gate.tau", "scorer")
    assert {arm.levels for arm in study.arms} == {(0.7, "oar_p"), (0.4, "uniform")}
    assert study.arms[0].levels == (0.4, "uniform")


def test_sweeps_that_were_started_with_other_settings_are_other_arms() -> None:
    """A learning rate that no sweep has swept; a setting that changes nothing of that kind is none."""
    about = {"params": {"optimizer.lr": "0.0003"}}
    first, second = "+experiment=oar_g num_threads=1", "+experiment=oar_g optimizer.lr=1e-4 num_threads=2"
    runs = [
        trial(result, {"scorer": scorer, "seed": 0}, tags={"overrides": f"{given} scorer={scorer}"}, **about)
        for given, results in ((first, [0.5, 0.6]), (second, [0.7, 0.8]))
        for scorer, result in zip(["uniform", "oar_g"], results, strict=True)
    ]
    oracle = trial(0.9, {"which": "results", "seed": 0}, tags={"overrides": "+experiment=oracle num_threads=1"}, **about)
    study = make_study("x", [], [*runs, oracle], baseline="uniform lr=0.0003")
    assert study.factors == ("scorer", "which", "optimizer.lr"), "the experiment tells no two arms apart"
    assert {arm.label: study.values(arm) for arm in study.arms} == {
        "uniform lr=0.0003": [0.5],
        "uniform lr=0.0001": [0.7],
        "oar_g lr=0.0001": [0.8],
        "oar_g lr=0.0003": [0.6],
        "results lr=0.0003": [0.9],
    }
    assert not study.uncounted
    assert make_study("x", [], runs[:2]).factors == ("scorer",)


def test_whole_numbers_are_told_apart_by_any_of_their_digits() -> None:
    seeds = ("20260131", "20260132", "2e7", "20000000", str(2**63 - 1), str(2**63))
    runs = [trial(0.1 * n, tags={"overrides": f"data.train.seed={seed}"}) for n, seed in enumerate(seeds)]
    study = make_study("x", [], runs)
    assert {arm.label: study.values(arm) for arm in study.arms} == {
        "seed=20000000": [pytest.approx(0.3)],
        "seed=20260131": [0.0],
        "seed=20260132": [0.1],
        str(2**63 - 1): [0.4],
        str(2**63): [0.5],
    }
    assert [run.state for run in study.uncounted] == ["repeated"], "2e7 is 20000000"


def test_labels_and_orders() -> None:
    keys = ["scorer.probe.name", "scorer.probe.warmup_steps", "gate.renormalize", "scorer.fill"]
    assert label(keys, ["last", 20.0, "false", "null"]) == "last warmup_steps=20 renormalize=false fill=null"
    assert label(["scorer.probe.name"], ["null"]) == "probe=null"
    assert label(["scorer", "scorer.locate.which"], ["uniform", "default"]) == "uniform", "it has no such key"
    assert label(["scorer.locate.which"], ["default"]) == "which=default"
    assert level(trial(0.5, {"x": "nan"}), "x") == "nan"
    assert level(trial(0.5, {"x": None}), "x") == level(trial(0.5, params={"x": "None"}), "x") == "null"
    assert ordered(["both", 2.0, "off", 0.5, "both"]) == [0.5, 2.0, "both", "off"]
    assert sorted(["10", "2", "1"], key=natural) == ["1", "2", "10"]


def test_runs_that_are_no_result_are_kept_apart_with_their_reasons() -> None:
    good = [trial(0.5, {"scorer": "oar_g", "seed": 0}), trial(0.7, {"scorer": "uniform", "seed": 0})]
    bad = [
        trial(0.99, {"scorer": "oar_g", "seed": 1}, state="killed"),
        trial(0.99, {"scorer": "oar_g", "seed": 1}, state="failed", reason="entropy collapsed"),
        trial(None, {"scorer": "oar_g", "seed": 1}),
        trial(float("nan"), {"scorer": "oar_g", "seed": 1}),
        trial(1.797e308, {"scorer": "oar_g", "seed": 1}),  # what MLflow makes of infinity
    ]
    again = trial(0.6, {"scorer": "oar_g", "seed": 0})
    study = make_study("x", [], [*good, *bad, again])
    assert [study.values(arm) for arm in study.arms] == [[0.7], [0.6]], "of two runs alike the newer counts"
    states = {run.run_id: (run.state, run.reason) for run in study.uncounted}
    nothing = ("without result", "objective is missing or not finite")
    expected = [("killed", ""), ("failed", "entropy collapsed"), nothing, nothing, nothing]
    assert [states[run.run_id] for run in bad] == expected
    assert states[good[0].run_id] == ("repeated", "a newer run of the same settings and seed counts")
    assert len(states) == 6
    assert len(study.all_runs) == 8


def test_an_arm_is_not_the_best_by_those_of_its_runs_that_did_not_fall_apart() -> None:
    fell = {"state": "failed", "reason": "Diverged: accuracy below half of that before training"}
    lucky = [trial(0.9, {"scorer": "oar_g", "seed": 0}), *(trial(0.1, {"scorer": "oar_g", "seed": s}, **fell) for s in (1, 2))]
    steady = [trial(0.5, {"scorer": "uniform", "seed": seed}) for seed in range(3)]
    mended = trial(0.1, {"scorer": "uniform", "seed": 2}, **fell)  # which was run again
    broken = trial(0.1, {"scorer": "uniform", "seed": 9}, state="failed", reason="OSError: disk full")
    other = trial(0.1, {"scorer": "uniform", "seed": 9, "optimizer.lr": 0.1}, **fell)  # a rate of no arm
    study = make_study("x", [], [*lucky, mended, *steady, broken, other])
    assert [study.given_up(arm) for arm in study.arms] == [0, 2]
    curves: Curves = {}
    rows = results_table(study, curves)
    assert [row[:2] for row in rows[1:]] == [["uniform", "3"], ["oar_g", "1 (2 given up)"]]
    assert not any("**" in cell for row in rows for cell in row)
    assert "looks better than it is" in about_results(study, curves)
    whole = make_study("x", [], [lucky[0], *steady])
    assert "looks better" not in about_results(whole, curves)
    assert "**" in results_table(whole, curves)[2][2]


def test_a_run_that_began_with_another_ones_state_displaces_no_run_from_scratch() -> None:
    scratch = [trial(result, {"gate.tau": tau, "seed": 0}) for tau, result in ((0.4, 0.5), (0.9, 0.6))]
    fork = trial(0.99, {"gate.tau": 0.9, "seed": 0}, tags={"resumed_from": "/a/last.ckpt", "resumed_from_step": "160"})
    killed = trial(0.99, {"gate.tau": 0.9, "seed": 0}, tags={"resumed_from_step": "160"}, state="killed")
    study = make_study("x", [], [*scratch, fork, killed])
    assert [study.values(arm) for arm in study.arms] == [[0.5], [0.6]]
    reason = "it began with the state of another run at step 160 (resume_changed=true)"
    assert [(run.run_id, run.state, run.reason) for run in study.uncounted] == [
        (fork.run_id, "forked", reason),
        (killed.run_id, "killed", ""),
    ]
    with pytest.raises(ConfigError, match=r"began with another run's state .*; add runs from scratch, or .*task=export"):
        make_study("x", [], [fork, killed])


def test_differences_are_taken_between_runs_of_the_same_seed() -> None:
    base = [trial(value, {"scorer": "uniform", "seed": seed}) for seed, value in [(2, 0.1), (0, 0.2), (7, 0.9)]]
    other = [trial(value, {"scorer": "oar_g", "seed": seed}) for seed, value in [(0, 0.5), (1, 0.0), (2, 0.2)]]
    study = make_study("x", [], base + other)
    assert study.differences(study.arms[1]) == pytest.approx([0.3, 0.1])
    named = make_study("x", [], base + other, baseline="oar_g")
    assert named.differences(named.arms[1]) == pytest.approx([-0.3, -0.1])
    alone = make_study("x", [], [trial(0.3, {"scorer": name}) for name in ("a", "b")])
    assert alone.baseline is None
    assert alone.differences(alone.arms[0]) == []


def test_the_metric_is_the_objective_else_the_first_benchmarks_accuracy() -> None:
    evaluation = {"eval/b/avg_at_4": 0.2, "eval/a/avg_at_4": 0.1, "eval/a/level_5/avg_at_4": 0.3, "eval/a/avg_at_4_low": 0.0}
    run = trial(None, metrics=evaluation)
    assert make_study("x", [], [run]).metric == "eval/a/avg_at_4"
    named = make_study("x", [], [run], metric="eval/b/avg_at_4")
    assert named.values(named.arms[0]) == [0.2]
    assert make_study("x", [], [run, trial(0.5)]).metric == "objective"


@pytest.mark.parametrize(
    ("runs", "options", "message"),
    [
        ([trial(0.5, state="killed"), trial(0.5, state="running")], {}, "x has no finished run (1 killed, 1 running)"),
        ([trial(0.5)], {"metric": "reward"}, "report.metric=reward: no finished run of x has it; the metrics are: objective"),
        ([trial(None)], {}, "report.metric=null (objective or eval/*/avg_at_*): no finished run of x has it"),
        ([trial(float("nan"))], {}, "report.metric=objective is not finite in any finished run"),
        (
            [trial(0.5, {"scorer": "oar_g"}), trial(0.5, {"scorer": "oar_p"})],
            {"baseline": "grpo"},
            "report.baseline=grpo: no such arm; the arms are: oar_g, oar_p",
        ),
    ],
)
def test_errors_name_key_value_and_remedy(runs: list, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_study("x", [], runs, **options)
    assert message in str(caught.value)


def test_the_day_is_that_of_the_first_run() -> None:
    assert make_study("x", [], [trial(0.5)]).date == "2023-11-14"


def test_words_of_a_command_keep_their_spaces() -> None:
    template = "+data.prompt.template=Solve this: {question}"
    runs = [
        trial(0.5, tags={"overrides": shlex.join([template, "scorer=oar_g"])}),
        trial(0.4, tags={"overrides": "scorer=oar_p"}),
    ]
    assert runs[0].overrides == [template, "scorer=oar_g"]
    assert make_study("x", [], runs).factors == ("data.prompt.template", "scorer")
    assert trial(0.5, tags={"overrides": "name=it's scorer=oar_g"}).overrides == ["name=it's", "scorer=oar_g"], "a run of old"


def test_labels_tell_keys_apart_that_end_alike() -> None:
    keys = ("optimizer.lr", "scorer.lr", "gate.tau")
    assert label(keys, (1e-4, ABSENT, 0.5)) == "optimizer.lr=0.0001 tau=0.5"
    assert label(keys, (1e-4, 1e-3, 0.5)) == "optimizer.lr=0.0001 scorer.lr=0.001 tau=0.5"
    assert label(keys[1:], (1e-4, 0.5)) == "lr=0.0001 tau=0.5"


def test_a_key_that_an_override_deletes_makes_another_method() -> None:
    def given(words: str) -> dict[str, str]:
        return {"overrides": f"+experiment=oar_g {words}".strip()}

    runs = [trial(0.5, tags=given("")), trial(0.7, tags=given("~reward.weights.format"))]
    study = make_study("x", [], runs)
    assert study.factors == ("reward.weights.format",)
    assert {arm.label: study.values(arm) for arm in study.arms} == {"format=default": [0.5], "format=deleted": [0.7]}


def test_no_two_arms_have_one_label() -> None:
    """A run without a key may look like one with another key left out."""
    runs = [trial(0.5, {"+a.fill": "pad"}), trial(0.7, {"+b.shape": "pad"}), trial(0.6, {"+b.shape": "round"})]
    study = make_study("x", [], runs)
    assert {arm.label: study.values(arm) for arm in study.arms} == {
        "fill=pad shape=default": [0.5],
        "fill=default shape=pad": [0.7],
        "round": [0.6],
    }
    with pytest.raises(ConfigError, match=r"report\.baseline=pad: no such arm"):
        make_study("x", [], runs, baseline="pad")


def test_shares_of_an_evaluation_alone_are_percentages() -> None:
    runs = [trial(None, {"scorer": s}, metrics={"entropy": 0.3, "eval/chain/greedy": 0.5}) for s in ("uniform", "oar_g")]
    assert scale(make_study("x", [], runs, metric="entropy")) == (1.0, "")
    assert scale(make_study("x", [], runs, metric="eval/chain/greedy")) == (100.0, " %")
