"""The programs of docs/python.md do what the page says: the first is the command above it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.composing import composed_whole, passed, without_hydra
from support.pages import ROOT, commands, read

from oar_lightning import export_policy, tasks

PAGE = ROOT / "docs" / "python.md"


def programs() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", read(PAGE), re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("hydra_conf")
def test_the_program_gives_the_weights_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # as both set it, for the whole process
    monkeypatch.chdir(tmp_path)
    shorter = ["trainer.max_steps=2", "evaluation.greedy=false", "evaluation.heatmap=false"]
    command = [*commands(read(PAGE))[0], *shorter, "logger=none", "export_to=by_command"]
    tasks.prepare(passed(without_hydra(composed_whole(*command, cwd=str(tmp_path), output_dir=f"{tmp_path}/run"))))()
    names: dict[str, Any] = {}
    program = programs()[0].replace("max_steps=4", "max_steps=2").replace("samples=2", "samples=2, greedy=False, heatmap=False")
    exec(program, names)
    assert names["run"].trainer.global_step == 2
    export_policy(*names["run"].policy, "by_program")
    ours, theirs = (load_file(tmp_path / folder / "model.safetensors") for folder in ("by_program", "by_command"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    before, after = names["before"], names["after"]
    assert 0 <= before <= 1
    assert names["run"].evaluation.accuracies() == (before, after)
    assert len(list(tmp_path.glob("outputs/python/seed0/*/checkpoints/last.ckpt"))) == 1


@pytest.mark.usefixtures("hydra_conf")
def test_the_program_for_scores_prints_the_tokens_of_the_first_completion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = read(ROOT / "docs" / "recorded.md")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"problem": "1+1?", "answer": "2", "completion": "So 1+1=2.\\nThe answer is 2."}\n')
    given = ("task=score", "score.files=[rows.jsonl]", "score.output=scores.jsonl.gz", "logger=none")
    tasks.prepare(passed(without_hydra(composed_whole(*given, cwd=str(tmp_path), output_dir=f"{tmp_path}/run"))))()
    capsys.readouterr()
    names: dict[str, Any] = {}
    exec(program, names)
    printed = capsys.readouterr().out
    assert "".join(names["one"]["tokens"]) == "So 1+1=2.\nThe answer is 2."
    assert "2 answer 0.0 1.0" in printed.splitlines()
    fields = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page, re.MULTILINE)
    assert [name for cell in fields for name in re.findall(r"\w+", cell)] == list(names["one"])
    assert names["one"]["advantage"] is None
    assert (tmp_path / "scores_heatmap_1.html").is_file()


def test_the_other_programs_run() -> None:
    names: dict[str, Any] = {}
    for program in ("from oar_lightning import Method", *programs()[1:]):
        exec(program, names)
    assert type(names["method"].scorer).__name__ == "FunctionScorer"
    assert [one.verdict for one in names["scored"]] == ["correct", "incorrect"]
    assert names["heaviest"].weight > 1
    assert "<iframe" in names["page"]._repr_html_()
