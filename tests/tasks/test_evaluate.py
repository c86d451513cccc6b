"""task=evaluate: what it leaves behind, and that an interrupted evaluation ends like an uninterrupted one."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow import MlflowClient
from support import fake_vllm
from support.commands import run
from support.composing import Prepare

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.locks import FileLock
from oar_lightning.evaluation.metrics import evaluation_metrics
from oar_lightning.evaluation.result import ResultsFile
from oar_lightning.tasks import evaluate as task

SMALL = ("task=evaluate", "evaluation.problems=10", "evaluation.samples=2", "evaluation.batch_problems=4")
QUIET = (*SMALL, "logger=none")


def run_folder(folder: Path, number: int = 0) -> Path:
    return folder / "outputs" / "evaluate" / "seed0" / f"run{number}"


def kept(folder: Path, number: int = 0) -> Path:
    return run_folder(folder, number) / "results" / "chain.jsonl"


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first problem of every evaluation that is begun."""
    seen: list[int] = []
    original = task.evaluate

    def spy(*args: Any, start: int) -> Iterator[Any]:
        seen.append(start)
        return original(*args, start=start)

    monkeypatch.setattr(task, "evaluate", spy)
    return seen


def test_an_interrupted_evaluation_ends_like_an_uninterrupted_one(
    prepared: Prepare,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C after the first batch, then a kill that tears the results' last line; with MLflow."""
    caplog.set_level(logging.INFO, "oar_lightning")
    whole = prepared(*QUIET, "name=whole")()
    expected = (tmp_path / "outputs" / "whole" / "seed0" / "run0" / "results" / "chain.jsonl").read_bytes()
    assert capsys.readouterr().out.count("│ chain") == 5 + 1 + 3  # accuracies with answered and truncated; levels

    original, starts = task.evaluate, []

    def interrupted(*args: Any, start: int) -> Iterator[Any]:
        yield next(original(*args, start=start))
        raise KeyboardInterrupt

    monkeypatch.setattr(task, "evaluate", interrupted)
    with pytest.raises(SystemExit) as caught:
        prepared(*SMALL)()
    assert caught.value.code == 130
    assert "resume=true" in caplog.text
    file = tmp_path / "outputs" / "evaluate" / "seed0" / "run1" / "results" / "chain.jsonl"
    first = file.read_bytes()
    assert first == b"".join(expected.splitlines(keepends=True)[:4])
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("oar_lightning").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.status == "KILLED"

    def counted(*args: Any, start: int) -> Iterator[Any]:
        starts.append(start)
        return original(*args, start=start)

    monkeypatch.setattr(task, "evaluate", counted)
    file.write_bytes(first[:-20])
    assert prepared(*SMALL, "resume=true")() == whole
    assert starts == [3], "three whole lines were left"
    assert file.read_bytes() == expected
    assert "dropped an unfinished last line" in caplog.text

    (run,) = client.search_runs([experiment])
    assert run.info.status == "FINISHED"
    metrics = evaluation_metrics(ResultsFile(file).read())
    assert whole == metrics["avg_at_2"]
    assert {k: v for k, v in run.data.metrics.items() if k.startswith("eval/")} == pytest.approx(
        {f"eval/chain/{key}": value for key, value in metrics.items()}
    )
    assert (run.data.tags["task"], run.data.tags["data"], run.data.params["policy.name"]) == ("evaluate", "chain", "chain")
    tables = {name: json.loads((run_folder(tmp_path, 1) / "artifacts" / name).read_text()) for name in artifacts(client, run)}
    assert len(tables["completions/chain.json"]["data"]) == 10 * 3
    listed = {row[0]: row[1:] for row in tables["metrics/chain.json"]["data"]}
    assert listed["maj_at_2"] == [metrics["maj_at_2"], metrics["maj_at_2_low"], metrics["maj_at_2_high"]]


def artifacts(client: MlflowClient, run: Any) -> list[str]:
    return [a.path for folder in ("completions", "metrics") for a in client.list_artifacts(run.info.run_id, folder)]


def test_a_finished_evaluation_is_shown_again_but_not_another_one(
    prepared: Prepare, tmp_path: Path, starts: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    value = prepared(*QUIET)()
    before = kept(tmp_path).read_bytes()
    assert prepared(*QUIET, "resume=true", "evaluation.batch_problems=3", "rollout.max_batch=2")() == value
    assert kept(tmp_path).read_bytes() == before
    assert starts == [0, 10]
    first, second = capsys.readouterr().out.split("results: ")[:2]
    assert first == second[second.index("\n") + 1 :]
    for override, named in (
        ("evaluation.samples=3", r"evaluation\.samples=3 \(there 2\)"),
        ("rollout.temperature=0.5", r"rollout\.temperature=0\.5 \(there 1\.0\)"),
        ("policy.dtype=auto", r"policy\.dtype='auto' \(there 'float32'\)"),
        ("answer.boxed=false", r"answer\.boxed=False"),
        ("data.evaluation.chain.seed=1", r"data\.evaluation\.chain\.seed=1"),
    ):
        with pytest.raises(ConfigError, match=rf"made with another config: {named}"):
            prepared(*QUIET, "resume=true", override)
    lines = before.decode().splitlines(keepends=True)
    kept(tmp_path).write_text("".join(lines[::-1]))
    with pytest.raises(ConfigError, match=r"other problems than data\.evaluation\.chain has now"):
        prepared(*QUIET, "resume=true")


def test_the_folder_that_is_named_goes_on(prepared: Prepare, tmp_path: Path, starts: list[int]) -> None:
    """Not the newest one."""
    prepared(*QUIET, folder="mine")()
    prepared(*QUIET)()
    mine = run_folder(tmp_path).with_name("mine")
    (results,) = (mine / "results").glob("*.jsonl")
    whole = results.read_bytes()
    results.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    prepared(*QUIET, "resume=true", folder="mine")()
    assert results.read_bytes() == whole
    assert starts == [0, 0, 2]


def test_a_policy_with_other_weights_does_not_go_on(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[int]
) -> None:
    """As where a training has exported to the same folder since."""
    prepared(*QUIET)()
    monkeypatch.setattr(task, "policy_fingerprint", lambda *_: "another")
    with pytest.raises(ConfigError, match=r"resume=true: .* a policy with other weights than policy\.name has now; start"):
        prepared(*QUIET, "resume=true")
    (run_folder(tmp_path) / "results" / "policy.sha256").unlink()
    prepared(*QUIET, "resume=true")()
    assert starts == [0, 10], "older versions have kept none"


def test_a_new_evaluation_does_not_take_anothers_results(prepared: Prepare, tmp_path: Path) -> None:
    prepared(*QUIET)()
    before = kept(tmp_path).read_bytes()
    with pytest.raises(ConfigError, match=r"hydra\.run\.dir=.*run0 holds the results of an evaluation; .* name another folder"):
        prepared(*QUIET, "rollout.temperature=0.5", folder="run0")
    with FileLock(run_folder(tmp_path) / "run.lock"), pytest.raises(ConfigError, match="another process is at work in"):
        prepared(*QUIET, "resume=true")
    assert kept(tmp_path).read_bytes() == before


@pytest.mark.parametrize("first", ["train", "evaluate"])
def test_training_and_evaluation_do_not_overwrite_each_other(first: str, prepared: Prepare, tmp_path: Path) -> None:
    """A run whose config is overwritten cannot be resumed, and its export would describe another one."""
    artifacts = tmp_path / "outputs" / "job" / "seed0" / "run0" / "artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / "config.yaml").write_text(f"task: {first}\n")
    (second,) = {"train", "evaluate"} - {first}
    with pytest.raises(ConfigError, match=rf"holds a job of task={first}, and one of task={second} would overwrite its config"):
        prepared(f"task={second}", "name=job", "logger=none", folder="run0")
    assert not (artifacts.parent / "run.lock").exists()


def test_an_evaluation_that_cannot_begin_leaves_no_lock(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise ConfigError("no such server")

    monkeypatch.setattr(task.Tracker, "start", refused)
    with pytest.raises(ConfigError, match="no such server"):
        prepared(*QUIET)
    assert not list(tmp_path.rglob("run.lock"))


def test_an_evaluation_that_slurm_starts_again_goes_on(
    prepared: Prepare, store: str, tmp_path: Path, starts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    value = prepared(*SMALL)()
    lines = kept(tmp_path).read_text().splitlines(keepends=True)
    kept(tmp_path).write_text("".join(lines[:4]))
    for name, setting in {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, setting)
    assert prepared(*SMALL, folder="run0")() == value
    assert starts == [0, 4]
    client = MlflowClient(store)
    (run,) = client.search_runs(["1"])
    assert (run.info.status, len(client.get_metric_history(run.info.run_id, "eval/chain/avg_at_2"))) == ("FINISHED", 2)
    assert [path.name for path in run_folder(tmp_path).glob("tracking*")] == ["tracking"], "it goes on in its journal"
    assert {key: value for key, value in run.data.tags.items() if key.startswith("resumed")}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.evaluation=null"], "names no evaluation set"),
        (["ckpt_path=outputs"], "task=evaluate takes a policy"),
        (["policy=fresh"], "policy=fresh is a random policy"),
        (["resume=true"], "no evaluation under"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(prepared: Prepare, tmp_path: Path, overrides: list[str], message: str) -> None:
    (tmp_path / "mlflow.db").unlink()  # the empty store that comes with `prepared`
    with pytest.raises(ConfigError, match=message):
        prepared(*SMALL, *overrides)
    assert not (tmp_path / "mlflow.db").exists()
    assert not (tmp_path / "outputs").exists()


def test_a_failure_closes_the_run(prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(task.Tracker, "close", lambda self, status: closed.append(status))
    monkeypatch.setattr(task, "log_set", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepared(*QUIET, "evaluation.problems=1")()
    assert closed == ["FAILED"]


def test_the_command(tmp_path: Path) -> None:
    """One sample a problem, in a process of its own."""
    done = run(tmp_path, "task=evaluate", "evaluation.problems=2", "evaluation.samples=1", "logger=none")
    assert done.code == 0, done.shown
    assert "avg_at_1" in done.stdout
    (file,) = tmp_path.glob("outputs/evaluate/seed0/*/results/chain.jsonl")
    assert len(ResultsFile(file).read()) == 2


def test_every_engine_is_evaluated_with_as_the_config_says(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's stand-in and the package's own loop decode greedily alike; results of one are not continued with another."""
    overrides = (*QUIET, "evaluation.problems=3", "rollout.max_new_tokens=20")
    prepared(*overrides)()
    llm = fake_vllm.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    prepared(*overrides, "engine=vllm")()
    assert llm.made[0].events == ["apply_model", "reset_prefix_cache", "generate", "generate"]
    lines = [[json.loads(line) for line in kept(tmp_path, n).read_text().splitlines()] for n in range(2)]
    greedy = [[row["greedy_completion"] for row in rows] for rows in lines]
    assert greedy[0] == greedy[1]
    assert len(greedy[0]) == 3
    with pytest.raises(ConfigError, match=r"resume=true: .*engine\._target_='oar_lightning\.rollout\.AutoEngineConfig'"):
        prepared(*overrides, "resume=true")


def test_it_warns_where_many_completions_are_cut_off(prepared: Prepare, caplog: pytest.LogCaptureFixture) -> None:
    """With the limit of the built-in task its policy ends its completions itself."""
    prepared(*QUIET, "name=whole")()
    assert "cut off" not in caplog.text
    prepared(*QUIET, "name=cut", "rollout.max_new_tokens=4")()
    assert "chain: 100 % of the completions were cut off at rollout.max_new_tokens=4" in caplog.text
    assert "data.max_prompt_tokens" not in caplog.text


def test_it_tells_that_it_leaves_out_no_problem(prepared: Prepare, caplog: pytest.LogCaptureFixture) -> None:
    prepared(*QUIET, "data.max_prompt_tokens=5")
    assert "data.max_prompt_tokens=5: without effect, since an evaluation leaves out no problem" in caplog.text


def test_results_that_came_while_the_policy_was_loaded_are_not_added_to(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another process, which has ended since."""
    original = task.load_policy

    def slowly(*args: Any) -> Any:
        (run_folder(tmp_path) / "results").mkdir(parents=True)
        kept(tmp_path).write_text("another's")
        return original(*args)

    monkeypatch.setattr(task, "load_policy", slowly)
    with pytest.raises(ConfigError, match="holds the results of an evaluation"):
        prepared(*QUIET)
    assert kept(tmp_path).read_text() == "another's"
