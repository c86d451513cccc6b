"""runs.csv and the curves: what is written is read back, to the same page; damaged files are told."""

from __future__ import annotations

import dataclasses
import gzip
import shlex
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from support.run_records import straight, trial

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.paths import conf_dir
from oar_lightning.reporting.bands import last_tenth
from oar_lightning.reporting.costs import PASSES, cost
from oar_lightning.reporting.export import CURVES, curves_csv, read_export, runs_csv
from oar_lightning.reporting.page import write_study
from oar_lightning.reporting.runs import Curve
from oar_lightning.reporting.settings import is_trained, training
from oar_lightning.reporting.study import make_study

COMMAND = "python -m oar_lightning task=report sweep=x"


def study_of_two():
    params = {"evaluation.problems": "8", "evaluation.samples": "4", "data.evaluation.chain.split": "held_out"}
    tags = {"sweep_command": "+sweeps=a hydra.sweeper.study_name=x", "torch": "2.13"}
    runs = [
        trial(
            value,
            {"scorer": name, "gate.tau": tau, "seed": s},
            params=params,
            tags=tags,
            metrics={"objective": value + s / 100},
        )
        for name, tau, value in (("uniform", None, 0.25), ("oar_g", 0.3, 1 / 3))
        for s in (0, 1, 2)
    ]
    runs.append(trial(0.9, {"scorer": "oar_g", "gate.tau": 0.3, "seed": 9}, state="failed", reason="it, fell\nover"))
    study = make_study("x", [], runs)
    entropy = {k: v for run in study.runs for k, v in straight(run, run.metrics["objective"]).items()}
    return study, {"eval/chain/avg_at_4": entropy, "entropy": entropy}


def test_a_page_made_from_the_files_is_the_page(tmp_path: Path) -> None:
    study, curves = study_of_two()
    write_study(tmp_path / "a", study, curves, {}, COMMAND)
    runs, read = read_export(tmp_path / "a" / "runs.csv")
    again = make_study("x", [], runs)
    write_study(tmp_path / "b", again, read, {}, COMMAND)
    first, second = ({p.name: p.read_bytes() for p in (tmp_path / d).iterdir()} for d in "ab")
    assert set(first) == set(second) >= {"runs.csv", CURVES, "README.md", "learning_curves.png"}
    assert [name for name in first if first[name] != second[name] and not name.endswith(".png")] == []


def test_a_page_of_policies_that_were_evaluated_is_made_again_from_its_file(tmp_path: Path) -> None:
    """Neither "160 updates" nor "at the end of training", and the command looks for runs of task=evaluate."""
    about = {"trainer.max_steps": "160", "update.problems": "32", "update.group_size": "8"}
    runs = [trial(0.5, {"policy.name": p}, params={**about, "policy.name": p}, tags={"task": "evaluate"}) for p in ("a", "b")]
    study = make_study("x", [], runs)
    write_study(tmp_path / "a", study, {}, {}, COMMAND)
    write_study(tmp_path / "b", make_study("x", [], read_export(tmp_path / "a" / "runs.csv")[0]), {}, {}, COMMAND)
    first, second = ((tmp_path / d / "README.md").read_text() for d in "ab")
    assert first == second
    assert "none: a policy was evaluated" in second
    assert "report.filter=\"tags.task = 'evaluate'\"" in shlex.split(second.split("**Commands.**")[1].split("```")[1])


def test_a_file_of_before_the_task_was_kept_is_of_runs_that_trained(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(runs_csv(make_study("x", [], [trial(0.5, {"seed": 0})]), {}))
    assert "task" not in path.read_text().splitlines()[0].split(",")
    assert [is_trained(run) for run in read_export(path)[0]] == [True]


def test_a_judge_by_rules_costs_nothing_in_the_file_either(tmp_path: Path) -> None:
    judge = OmegaConf.load(conf_dir() / "scorer/judge/exact.yaml")["_target_"]
    run = trial(0.5, params={"scorer.judge._target_": judge}, tags={"scorer": "capo"})
    (tmp_path / "runs.csv").write_text(runs_csv(make_study("x", [], [run]), {}))
    assert [cost(read, {}, PASSES) for read in read_export(tmp_path / "runs.csv")[0]] == [0.0]


def test_runs_that_began_within_a_second_stay_in_their_order(tmp_path: Path) -> None:
    """The newer of two alike counts, though its id comes first; the file of an earlier version has whole seconds."""
    path = tmp_path / "runs.csv"
    starts = {"b": 1_700_000_000_007, "a": 1_700_000_000_503}
    runs = [dataclasses.replace(trial(0.5, {"gate.tau": 0.3}), run_id=name, started=ms) for name, ms in starts.items()]
    path.write_text(runs_csv(make_study("x", [], runs), {}))
    read, _ = read_export(path)
    assert [(run.run_id, run.started) for run in read] == [*starts.items()]
    assert [run.run_id for run in make_study("x", [], read).runs] == ["a"]
    path.write_text(path.read_text().replace(".007,", ",").replace(".503,", ","))
    assert {run.started for run in read_export(path)[0]} == {1_700_000_000_000}


def test_a_run_that_began_with_another_ones_state_is_known_from_the_file_but_not_where_that_lay(tmp_path: Path) -> None:
    tags = {"resumed_from": "/home/ann/last.ckpt", "resumed_from_step": "4"}
    runs = [trial(0.5, {"gate.tau": 0.3, "seed": 0}), trial(0.9, {"gate.tau": 0.3, "seed": 0}, tags=tags)]
    text = runs_csv(make_study("x", [], runs), {})
    assert "/home/ann" not in text
    (tmp_path / "runs.csv").write_text(text)
    again = make_study("x", [], read_export(tmp_path / "runs.csv")[0])
    assert ([run.run_id for run in again.runs], [run.state for run in again.uncounted]) == ([runs[0].run_id], ["forked"])
    assert runs_csv(again, {}) == text


def test_steps_of_any_size_stay_apart() -> None:
    steps = np.array([999_999.0, 1_000_001.0, 1_000_002.0])
    text = gzip.decompress(curves_csv(["a"], {"loss": {"a": Curve(steps, np.array([1.0, 2.0, 3.0]))}})).decode()
    assert [line.split(",")[1] for line in text.splitlines()[1:]] == ["999999", "1000001", "1000002"]


def test_means_over_the_last_tenth_are_kept_without_curves(tmp_path: Path) -> None:
    study, curves = study_of_two()
    (tmp_path / "runs.csv").write_text(runs_csv(study, curves))
    runs, read = read_export(tmp_path / "runs.csv")
    assert read == {}
    expected = {run.run_id: last_tenth(run, curves, "entropy") for run in study.runs}
    assert {run.run_id: last_tenth(run, {}, "entropy") for run in runs if run.state == "complete"} == expected


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n"], ids=["empty", "another table"])
def test_a_file_that_no_report_wrote_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "runs.csv"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_export(path)
    path.write_text(text)
    with pytest.raises(ConfigError, match="lacks run_id, run, trial"):
        read_export(path)


def test_damage_is_told(tmp_path: Path) -> None:
    study, curves = study_of_two()
    path = tmp_path / "runs.csv"
    path.write_text(runs_csv(study, curves))
    (tmp_path / CURVES).write_bytes(curves_csv([run.run_id for run in study.runs], curves)[:-20])
    with pytest.raises(ConfigError, match="is damaged"):
        read_export(path)
    (tmp_path / CURVES).unlink()
    path.write_text(runs_csv(study, curves).replace("2023-11-14", "yesterday"))
    with pytest.raises(ConfigError, match="is damaged"):
        read_export(path)
    whole = runs_csv(study, curves).rstrip("\n")
    path.write_text(whole[: whole.rindex("\n") + 5])  # cut off in its last row
    with pytest.raises(ConfigError, match="is damaged"):
        read_export(path)


def test_whole_numbers_that_were_varied_have_all_their_digits(tmp_path: Path) -> None:
    runs = [trial(0.5, {"data.train.seed": seed, "gate.tau": tau}) for seed in (20260131, 20260132) for tau in (0.1, 1 / 3)]
    study = make_study("x", [], runs)
    (tmp_path / "runs.csv").write_text(runs_csv(study, {}))
    read = make_study("x", [], read_export(tmp_path / "runs.csv")[0])
    pairs = [(seed, tau) for seed in (20260131, 20260132) for tau in (0.1, 0.333333)]
    assert [arm.levels for arm in read.arms] == [arm.levels for arm in study.arms] == pairs


def test_settings_that_were_varied_are_settings(tmp_path: Path) -> None:
    """What was trained, and for how long, is told of a page made from its file as of the first."""
    params = {"trainer.max_steps": "80", "update.problems": "4", "update.group_size": "8"}
    overrides = [{"trainer.max_steps": n, "seed": s} for n in (80, 160) for s in (0, 1)]
    runs = [trial(0.5, o, params=params | {"trainer.max_steps": str(o["trainer.max_steps"])}) for o in overrides]
    study = make_study("x", [], runs)
    assert "trainer.max_steps" in study.factors
    (tmp_path / "runs.csv").write_text(runs_csv(study, {}))
    read, _ = read_export(tmp_path / "runs.csv")
    assert sorted(training(run) for run in read) == sorted(training(run) for run in runs)
