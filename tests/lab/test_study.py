"""Labs as parts of a study: their overrides, and a lab's results from a process of its own."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from oar_lightning.lab import study


def test_an_estimator_is_a_scorer_and_perhaps_a_gate() -> None:
    assert study.estimator("mine", "oar_p", of_scorer={"fill": "pad"}) == [
        "+scorer@lab.estimators.mine.scorer=oar_p",
        "lab.estimators.mine.scorer.fill=pad",
    ]
    assert study.estimator("mine", "oracle", "bilevel", of_gate={"tau": "0.5"}) == [
        "+scorer@lab.estimators.mine.scorer=oracle",
        "+gate@lab.estimators.mine.gate=bilevel",
        "lab.estimators.mine.gate.tau=0.5",
    ]
    assert study.without("late", "early") == ["~lab.estimators.late", "~lab.estimators.early"]


def test_results_are_read_from_the_labs_report(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def run(command: list[str], check: bool) -> None:
        assert check, "a lab that fails has no results"
        commands.append(command)
        folder = Path(command[-1].removeprefix("lab.report="))
        folder.mkdir()
        (folder / "results.json").write_text(json.dumps({"measures": {}}))
        rows = [{"tokens": ["So ", "1", "+1=2"]}, {"tokens": []}]
        (folder / "tokens.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))

    monkeypatch.setattr(subprocess, "run", run)
    assert study.lab_results("+variant=asides", "lab.problems=2") == {"measures": {}, "texts": ["So 1+1=2", ""]}
    assert commands[0][1:-1] == ["-m", "oar_lightning", "task=lab", "+variant=asides", "lab.problems=2"]


def test_a_script_runs_the_lab_that_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    for arguments in ([], ["--lab", "asides", "lab.problems=2"]):
        monkeypatch.setattr(sys, "argv", ["measure.py", *arguments])
        study.run_asked("what it does", {"asides": 1, "chain": 2}, lambda *words: asked.append(words))
    assert asked == [("asides", "lab.problems=2")]
    monkeypatch.setattr(sys, "argv", ["measure.py", "--lab", "aside"])
    with pytest.raises(SystemExit):
        study.run_asked("what it does", {"asides": 1}, lambda *words: None)


def test_an_experiment_is_its_scorer_its_gate_and_their_settings() -> None:
    assert study.of_experiment("acpo_add", "mine") == [
        "+scorer@lab.estimators.mine.scorer=information_gain",
        "+gate@lab.estimators.mine.gate=factorized",
        "scorer/segments@lab.estimators.mine.scorer.segments=sentences_entropy",
        'lab.estimators.mine.scorer.baseline="step"',
        'lab.estimators.mine.gate.combine="add"',
        "lab.estimators.mine.gate.scale=0.5",
        'lab.estimators.mine.gate.normalize="none"',
        "lab.estimators.mine.gate.clip=null",
    ], "with those of acpo, from which it goes on"
    assert study.of_experiment("rlsd", "mine", "scorer/teacher=policy", "scorer.hint=feedback") == [
        "+scorer@lab.estimators.mine.scorer=rlsd",
        "+gate@lab.estimators.mine.gate=direct",
        "scorer/teacher@lab.estimators.mine.scorer.teacher=policy",
        "lab.estimators.mine.scorer.region=${lab.estimators.mine.gate.region}",
        "lab.estimators.mine.gate.strength=0.5",
        "lab.estimators.mine.gate.low=0.8",
        "lab.estimators.mine.gate.high=1.2",
        "lab.estimators.mine.scorer.hint=feedback",
    ]
    assert study.of_experiment("grpo", "mine") == [
        "+scorer@lab.estimators.mine.scorer=uniform",
        "+gate@lab.estimators.mine.gate=bilevel",
    ]
