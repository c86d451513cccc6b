"""The printed commands, run by a shell in which `python` writes down its arguments: they are those of the study's runs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.run_records import trial

from oar_lightning.reporting.commands import commands
from oar_lightning.reporting.runs import PARENT, SWEEP_COMMAND, RunRecord, with_sweep_commands, words
from oar_lightning.reporting.study import make_study

REPORT = "python -m oar_lightning task=report report.name=x"


def run_in_a_shell(lines: list[str], folder: Path) -> list[list[str]]:
    """The arguments of each call of `python`."""
    stub = folder / "bin" / "python"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text('#!/bin/sh\nfor word; do printf "%s\\037" "$word"; done >>"$CALLS"; printf "\\n" >>"$CALLS"\n')
    stub.chmod(0o755)
    calls = folder / "calls"
    calls.write_text("")
    variables = {**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}", "CALLS": str(calls)}
    subprocess.run(["bash", "-c", "\n".join(lines)], env=variables, check=True)
    return [line.split("\x1f")[:-1] for line in calls.read_text().splitlines()]


def given(*words: str, seed: int) -> RunRecord:
    import shlex

    return trial(0.5, tags={"overrides": shlex.join([*words, f"seed={seed}"]), "seed": str(seed)})


def test_a_table_of_overrides_makes_the_runs_again(tmp_path: Path) -> None:
    quoted = 'data.prompt.template=It\'s {question} $HOME "x" \\n'
    arms = [
        ("+experiment=grpo", "+variant=asides", quoted, "trainer.max_steps=80"),
        ("+experiment=oar_g", "+variant=asides", quoted, "trainer.max_steps=80", "gate.tau=0.5"),
        ("+experiment=oar_g", "+variant=asides", quoted, "trainer.max_steps=80", "optimizer.lr=1e-4", "gate.tau=0.5"),
    ]
    runs = [given(*arm, seed=seed) for arm in arms for seed in (0, 1)] + [given(*arms[0], seed=10)]
    study = make_study("x", [], runs)
    lines = commands(study, REPORT)
    assert len(lines) == 6, "one command, a line for each arm, and the report"
    *made, report = run_in_a_shell(lines, tmp_path)
    found = {tuple(sorted(call[3:])) for call in made}
    seeds = ("0,1,10", "0,1", "0,1")
    name = "logger.experiment_name=x"
    expected = {tuple(sorted(["-m", *arm, name, f"seed={s}"])) for arm, s in zip(arms, seeds, strict=True)}
    assert found == {tuple(word for word in words if word != "-m") for words in expected}
    assert all(call[:3] == ["-m", "oar_lightning", "-m"] for call in made)
    for call in made:  # a config group that is added later wins
        assert [word.split("=")[0] for word in call if word.startswith("+")] == ["+experiment", "+variant"]
    assert report[2:4] == ["task=report", name]
    assert "report.filter=\"tags.task = 'train'\"" in report


def test_an_arm_without_words_of_its_own_is_in_the_table(tmp_path: Path) -> None:
    """`xargs` passes over an empty line."""
    arms = [("+experiment=oar_g",), ("+experiment=oar_g", "gate.tau=0.5")]
    study = make_study("x", [], [given(*arm, seed=seed) for arm in arms for seed in (0, 1)])
    made = run_in_a_shell(commands(study, REPORT), tmp_path)[:-1]
    name = "logger.experiment_name=x"
    assert [sorted(call[3:]) for call in made] == [sorted([*arm, name, "seed=0,1"]) for arm in arms]


def test_a_key_that_is_set_twice_stays_in_its_order(tmp_path: Path) -> None:
    arms = [("a.b=1", "a.b=2", "x=1"), ("a.b=2", "a.b=1", "x=2")]
    made = run_in_a_shell(commands(make_study("x", [], [given(*arm, seed=0) for arm in arms]), REPORT), tmp_path)[:-1]
    found = {next(word for word in call if word.startswith("x=")): [w for w in call if w.startswith("a.b")] for call in made}
    assert found == {arm[2]: list(arm[:2]) for arm in arms}


def test_how_a_run_was_resumed_is_no_part_of_its_command(tmp_path: Path) -> None:
    """`resume_changed=true` is refused where nothing is resumed; what it makes is no run from scratch."""
    resumed = given("+experiment=oar_g", "resume=true", "resume_changed=true", "trainer.max_steps=8", seed=0)
    fork = trial(0.9, tags={"overrides": "+experiment=oar_g gate.tau=0.9 seed=0", "seed": "0", "resumed_from_step": "4"})
    made = run_in_a_shell(commands(make_study("x", [], [resumed, fork]), REPORT), tmp_path)[:-1]
    name = "logger.experiment_name=x"
    assert [call[2:] for call in made] == [["+experiment=oar_g", "trainer.max_steps=8", "seed=0", name]]


def test_trials_are_made_by_the_commands_of_their_sweeps(tmp_path: Path) -> None:
    sweeps = ["+sweeps=a x=1 hydra.sweeper.study_name=one", "+sweeps=a 'scorer=choice(x,y)' hydra.sweeper.study_name=two"]
    runs = [trial(0.5, {"seed": s}, tags={"sweep_command": words}) for words in sweeps for s in (0, 1)]
    lines = commands(make_study("x", [], runs), REPORT)
    *made, report = run_in_a_shell(lines, tmp_path)
    assert [sorted(call[3:]) for call in made] == [sorted(words(sweep)) for sweep in sweeps]
    assert report == words(REPORT)[1:]
    one = commands(make_study("x", [], runs[:2]), REPORT)
    assert one == [f"python -m oar_lightning -m {sweeps[0]}", REPORT]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["lr_asides", "methods_asides"], "report.filter=\"tags.sweep LIKE '%_asides'\""),
        (["grid_1", "grid_2"], "report.filter=\"tags.sweep LIKE 'grid_%'\""),
        (["grid"], "sweep=grid"),
        (["alpha1", "beta2"], "report.runs=[ID,ID]"),
    ],
)
def test_the_report_of_kept_runs_is_made_from_the_sweeps_that_make_them_again(names: list[str], chosen: str) -> None:
    sweeps = [f"+sweeps=a hydra.sweeper.study_name={name}" for name in names]
    runs = [trial(0.5, {"seed": s}, tags={"sweep_command": sweep}) for s, sweep in enumerate(sweeps)]
    again = commands(make_study("x", [], runs), f"{REPORT} report.csv=reports/x/runs.csv")[-1]
    assert words(again)[3:] == ["task=report", chosen, "report.name=x", "report.metric=objective"]


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_one_arm_is_one_line(seeds: tuple[int, ...], tmp_path: Path) -> None:
    lines = commands(make_study("x", [], [given("+experiment=grpo", seed=seed) for seed in seeds]), REPORT)
    (made, _) = run_in_a_shell(lines, tmp_path)
    assert ("-m" in made[2:]) == (len(seeds) > 1)
    assert json.dumps(made).count("seed=") == 1


def test_the_report_of_evaluations_finds_evaluations() -> None:
    for tasks, chosen in ((("evaluate",), "= 'evaluate'"), (("evaluate", "train"), "!= ''")):
        runs = [trial(0.5, tags={"task": task, "overrides": f"task={task}", "seed": "0"}) for task in tasks]
        assert f'report.filter="tags.task {chosen}"' in words(commands(make_study("x", [], runs), REPORT)[-1])


def test_the_command_of_a_sweep_that_kept_its_credentials_is_shown_without() -> None:
    tags = {"kind": "sweep", "sweep": "mine", "overrides": "+sweeps=mine +scorer.judge.api_key=word"}
    info = SimpleNamespace(run_id="p", run_name="mine", status="FINISHED", start_time=0, end_time=1)
    parent = SimpleNamespace(info=info, data=SimpleNamespace(tags=tags, params={}, metrics={}))
    client = SimpleNamespace(get_run=lambda run_id: parent)
    (told,) = with_sweep_commands(client, [trial(0.5, tags={PARENT: "p"})])  # type: ignore[arg-type]
    assert told.tags[SWEEP_COMMAND] == "+sweeps=mine '+scorer.judge.api_key=***' hydra.sweeper.study_name=mine"
