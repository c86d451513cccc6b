"""task=lab on the built-in policy and on recorded completions: its numbers by hand, and a lab that is killed."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.errors import HydraException
from mlflow import MlflowClient
from scipy.stats import mannwhitneyu, spearmanr, t
from support.composing import Prepare

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.locks import RUN_LOCK
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.lab import values
from oar_lightning.lab.stability import Stability
from oar_lightning.rollout.continuations import Continuer
from oar_lightning.tasks.lab import refuse_used

FEW = [f"~lab.estimators.{name}" for name in ("early", "entropy", "oar_p", "information_gain", "total_effect")]
ALONE = [f"~lab.estimators.{n}" for n in ("random", "late", "improbability", "oracle", "oar_g", "total_effect_fast")]
KINDS = ("faithfulness", "stability", "gradients")
SMALL = ["task=lab", "lab.problems=3", "lab.samples=2", "lab.continuations=4", "lab.batch=2", "lab.cache=cache.db", *FEW]
SMALL += [f"lab.{kind}=null" for kind in KINDS]
SMALL += ["logger=none"]


def newest(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    path = sorted(folder.glob("outputs/lab/seed0/*"))[-1]
    lines = gzip.decompress((path / "tokens.jsonl.gz").read_bytes()).decode().splitlines()
    return json.loads((path / "results.json").read_text()), [json.loads(line) for line in lines]


def numbers(found: dict[str, Any]) -> Any:
    """The part of the results that two runs have in common."""
    return [found[key] for key in ("completions", "tokens", "truths", "measures", "differences")]


def test_the_table_is_reproduced_from_the_tokens(prepared: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(*SMALL)()
    found, rows = newest(tmp_path)
    shown = capsys.readouterr().out
    assert set(found["truths"]) == {"results", "causal", "first_error", "monte_carlo"}
    assert len(rows) == 6
    for truth in found["truths"]:
        by_problem: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            known = np.array(row["truths"][truth]["known"], dtype=bool)
            decisive = np.array(row["truths"][truth]["decisive"], dtype=bool)[known]
            for name, said in row["estimators"].items():
                size = np.abs(np.array(said["score"])[known])
                if 0 < decisive.sum() < len(decisive):
                    area = mannwhitneyu(size[decisive], size[~decisive]).statistic / (decisive.sum() * (~decisive).sum())
                    by_problem[name][row["problem"]].append(area)
        measure = found["measures"][f"{truth}.auroc"]
        for name, areas in by_problem.items():
            flat = [a for part in areas.values() for a in part]
            mean = measure["means"][name]
            assert [v for v in measure["values"][name] if v is not None] == pytest.approx(flat)
            assert mean["mean"] == pytest.approx(np.mean(flat))
            assert f"{np.mean(flat):.2f}" in shown
            if len(areas) == 3:
                assert_of_students_t(mean, list(areas.values()))
    ties = [d for d in found["differences"] if d["measure"] == "results.auroc" and d["estimator"] == "oracle"]
    assert ties[0]["mean"] == pytest.approx(
        found["measures"]["results.auroc"]["means"]["oracle"]["mean"]
        - found["measures"]["results.auroc"]["means"]["is_digit"]["mean"]
    )
    correlations(found, rows)


def assert_of_students_t(mean: dict[str, float], groups: list[list[float]]) -> None:
    """Of three problems: the ratio estimator's standard error, with two degrees of freedom."""
    if mean["low"] is None:
        assert len({value for group in groups for value in group}) == 1, "equal values tell nothing of their scatter"
        return
    residuals = [sum(group) - mean["mean"] * len(group) for group in groups]
    half = t.ppf(0.975, 2) * math.sqrt(3 / 2 * sum(r * r for r in residuals)) / sum(map(len, groups))
    assert (mean["low"], mean["high"]) == pytest.approx((mean["mean"] - half, mean["mean"] + half))


def correlations(found: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    for name in found["estimators"]:
        sizes, directions = [], []
        for row in rows:
            free = np.array(row["free"], dtype=bool)
            value = np.array(row["truths"]["monte_carlo"]["value"])[free]
            if free.sum() > 1 and len(set(np.abs(value))) > 1:
                score = np.abs(np.array(row["estimators"][name]["score"]))[free]
                sizes.append(0.0 if len(set(score)) == 1 else spearmanr(score, np.abs(value)).statistic)
                advantage = np.array(row["estimators"][name]["advantage"])[free]
                directions.append(0.0 if len(set(advantage)) == 1 else spearmanr(advantage, value).statistic)
        for key, expected in (("spearman_free", sizes), ("direction_free", directions)):
            mean = found["measures"][f"monte_carlo.{key}"]["means"][name]["mean"]
            assert mean == pytest.approx(np.mean(expected), abs=1e-6) or not expected


def test_controls_and_truths_are_what_they_say(prepared: Prepare, tmp_path: Path) -> None:
    prepared(*SMALL, "lab.continuations=0", "scorer=position")()
    found, rows = newest(tmp_path)
    assert "monte_carlo" not in found["truths"]
    assert "position" in found["estimators"], "the config's own scorer takes part"
    assert found["estimators"]["improbability"] | {"seconds": 0} == {
        "control": True,
        "signed": False,
        "seconds": 0,
        "forward_equivalents": 1.0,
    }
    row = rows[0]
    reasoning = np.array(row["reasoning"], dtype=bool)
    digits = [float(any(c.isdigit() for c in token)) for token in row["tokens"]]
    np.testing.assert_array_equal(row["estimators"]["is_digit"]["score"], np.array(digits) * reasoning)
    np.testing.assert_allclose(
        row["estimators"]["improbability"]["score"], (1 - np.array(row["probability"])) * reasoning, atol=1e-5
    )
    np.testing.assert_array_equal(row["free"], reasoning & (np.array(row["probability"]) < 0.98))
    assert found["measures"]["first_error.hit_1"]["means"]["oracle"]["mean"] in (None, 1.0)


def test_the_page_is_in_the_folder_the_report_and_mlflow(prepared: Prepare, tmp_path: Path, store: str) -> None:
    few = [option for option in SMALL if option != "logger=none"]
    prepared(*few, *ALONE, "lab.continuations=0", "lab.problems=1", "lab.samples=1", "lab.report=reports/one")()
    folder, report = sorted(tmp_path.glob("outputs/lab/seed0/*"))[-1], tmp_path / "reports" / "one"
    page = (folder / "lab.html").read_text()
    found, rows = newest(tmp_path)
    assert found["baseline"] == "is_digit"
    assert set(found["ranking"]) == set(found["estimators"])
    assert f"{len(rows[0]['tokens'])} tokens" in page
    assert (report / "lab.html").read_text() == page
    assert "| is_digit (control) |" in (report / "README.md").read_text()
    assert "logger" not in json.loads((report / "results.json").read_text())["settings"]
    logged = list(tmp_path.rglob("artifacts/lab.html"))
    assert [path.read_text() for path in logged] == [page]

    (folder / "lab.html").unlink()
    prepared("task=lab", f"lab.render={folder}", "policy.name=none_such", "logger=none")()
    assert (folder / "lab.html").read_text() == page
    prepared("task=lab", f"lab.render={report}", "logger=none")()
    assert (report / "lab.html").read_text() == page


@pytest.mark.parametrize(
    ("settings", "named"),
    [(["lab.render=none"], "lab.render: none does not hold"), (["lab.report=file"], "lab.report=file cannot be written")],
)
def test_folders_are_checked_first(prepared: Prepare, tmp_path: Path, settings: list[str], named: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=named):
        prepared("task=lab", *settings)


def test_a_gate_is_held_against_the_loss_of_the_lab(prepared: Prepare) -> None:
    """RLCSD's gate needs another mean than the default, which its experiment brings."""
    few = [*SMALL, *ALONE, "lab.continuations=0", "lab.problems=1"]
    prepared(*few, "+experiment=rlcsd")
    with pytest.raises(ConfigError, match=r"lab.estimators.contrast.*use loss.reduction=dapo"):
        prepared(*few, "+experiment=rlcsd", "loss.reduction=grpo")


class Killed(BaseException):
    pass


@pytest.mark.slow
def test_killed_and_started_again_nothing_is_sampled_twice(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's calls are counted; the second lab dies twice. `tests/system/test_lab_command.py` kills processes."""
    monkeypatch.setattr(values, "UNIT", 8)
    calls: list[tuple[Any, int]] = []
    original, dies_at = Continuer.__call__, [10**9]

    def counted(
        self: Continuer, model: Any, rollouts: Any, prefixes: Any, samples: int, seed: int, greedy: bool = False
    ) -> Any:
        if len(calls) >= dies_at[0]:
            raise Killed
        calls.append(
            (tuple((rollouts.problems[r].question, tuple(rollouts.token_ids[r, :c].tolist())) for r, c in prefixes), seed)
        )
        return original(self, model, rollouts, prefixes, samples, seed, greedy)

    monkeypatch.setattr(Continuer, "__call__", counted)
    settings = [*SMALL, *ALONE, "lab.half_width=0", "lab.problems=2", "lab.samples=1"]
    prepared(*settings)()
    expected, whole = newest(tmp_path)[0], list(calls)
    assert len(whole) == len(set(whole)) > 6
    calls.clear()
    again = [*settings, "lab.cache=another.db"]
    for dies_at[0] in (3, len(whole) // 2):
        with pytest.raises(Killed):
            prepared(*again)()
    dies_at[0] = 10**9
    prepared(*again)()
    found = newest(tmp_path)[0]
    assert calls == whole
    assert numbers(found) == numbers(expected)
    prepared(*again)()
    assert len(calls) == len(whole)
    assert newest(tmp_path)[0]["continuations"] == {"continuations": expected["continuations"]["continuations"], "sampled": 0}
    assert numbers(newest(tmp_path)[0]) == numbers(expected)


def test_stopped_by_hand_what_is_there_is_printed(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Continuer, "__call__", stopped)
    with pytest.raises(SystemExit) as ended:
        prepared(*SMALL)()
    assert ended.value.code == 130
    found, _ = newest(tmp_path)
    assert not found["whole"]
    assert set(found["truths"]) == {"results", "causal", "first_error"}
    assert "Agreement with the truth" in capsys.readouterr().out


WITH_KINDS = [o for o in SMALL if not o.endswith("=null")] + ["lab.faithfulness.sets=4", "lab.faithfulness.completions=2"]
WITH_KINDS += [
    "lab.faithfulness.continuations=2",
    "lab.faithfulness.fractions=[0.1,0.3]",
    "lab.stability.draws=1",
    "lab.samples=4",
]


@pytest.mark.parametrize(
    ("error", "told"), [(ValueError, ""), (RuntimeError, "RuntimeError: "), (MemoryError, "MemoryError: ")]
)
def test_a_measure_that_fails_is_told_and_loses_nothing_else(
    error: type[Exception], told: str, prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    def fails(*args: Any) -> Any:
        raise error("this policy has no <layers>")

    monkeypatch.setattr(Stability, "__call__", fails)
    others = [option for option in SMALL if option not in ("lab.stability=null", "logger=none")]
    with pytest.raises(SystemExit) as ended:
        prepared(*others, f"lab.report={tmp_path / 'report'}")()
    assert ended.value.code == 1
    found, _ = newest(tmp_path)
    assert (found["whole"], found["failed"]) == (True, [f"{told}this policy has no <layers>"])
    assert found["measures"]
    page = tmp_path / "report" / "lab.html"
    assert f'<p class="warning">Not measured: {told}this policy has no &lt;layers&gt;.</p>' in page.read_text("utf-8")
    assert f"\nNot measured: {told}this policy has no <layers>.\n" in (tmp_path / "report" / "README.md").read_text("utf-8")
    (run,) = MlflowClient(store).search_runs([e.experiment_id for e in MlflowClient(store).search_experiments()])
    assert run.info.status == "FAILED"


def test_what_else_is_measured(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"~lab.estimators.{name}" for name in ("late", "improbability", "oar_g", "total_effect_fast")]
    names += ["lab.faithfulness.fills=[mean_embedding,model_sample]"]

    def stopped(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Stability, "__call__", stopped)
        with pytest.raises(SystemExit):
            prepared(*WITH_KINDS, *names)()
    found, _ = newest(tmp_path)
    assert found["gradients"] == {}
    assert "Fall of the outcome without the tokens that rank first" in capsys.readouterr().out

    sampled: list[int] = []
    continuer = Continuer.__call__
    monkeypatch.setattr(Continuer, "__call__", lambda *args: sampled.append(1) or continuer(*args))
    prepared(*WITH_KINDS, *names)()
    found, _ = newest(tmp_path)
    assert not sampled, "the effects on the reward were kept"
    for fill in ("mean_embedding", "model_sample"):
        for kind, curve, clean in (("comprehensiveness", "deletion", 0), ("sufficiency", "insertion", -1)):
            outcomes = found["curves"][f"direct.{fill}.{curve}"]
            assert outcomes["fraction"] == [0.0, 0.1, 0.3, 1.0]
            for name, f in outcomes["outcome"].items():
                measured = [v for v in found["measures"][f"direct.{fill}.{kind}"]["values"][name] if v is not None]
                assert np.mean(measured) == pytest.approx(f[clean] - np.mean(f[1:-1]))
        total = found["measures"][f"total.{fill}.comprehensiveness"]["values"]
        assert {sum(v is not None for v in of_name) for of_name in total.values()} == {2}
        assert f"direct.{fill}.infidelity" in found["measures"]
    assert found["measures"]["stability.sensitivity"]["values"]["is_digit"][0] == 0.0
    assert found["measures"]["stability.randomized_layers"]["values"]["is_digit"][0] == 1.0
    assert set(found["gradients"]) == {"(unweighted)", "(values)", *found["estimators"]}
    assert found["gradients"]["(unweighted)"]["variance/(unweighted)"]["mean"] == 1.0
    shown = capsys.readouterr().out
    assert "Stability" in shown
    assert "Policy gradient of one problem's completions" in shown


def recorded(tmp_path: Path) -> Path:
    """Right and wrong solutions of one task, one without a gold answer, and a row in the form of MR-GSM8K."""
    rows = []
    for number, problem in zip(range(2), ChainProblems(ChainTask(noise=0.0)), strict=False):
        wrong = problem.solution.replace("\\boxed{" + problem.answer, "\\boxed{99")
        own = {"problem": problem.question, "answer": problem.answer}
        rows += [own | {"id": f"{number}a", "completion": problem.solution}, own | {"id": f"{number}b", "completion": wrong}]
    steps = problem.solution.split(". ")
    rows.append({"question": problem.question, "model_output_steps": steps, "model_output_solution_first_error_step": 1})
    path = tmp_path / "recorded.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_recorded_completions(prepared: Prepare, tmp_path: Path) -> None:
    prepared(*SMALL, f"lab.files=[{recorded(tmp_path)}]", "lab.budget=20")()
    found, rows = newest(tmp_path)
    assert [row["id"] for row in rows][:4] == ["0a", "0b", "1a", "1b"]
    assert [row["correct"] for row in rows] == [True, False, True, False, None]
    assert found["truths"]["first_wrong_step"]["completions"] == 1
    assert "first_wrong_step.right_step" in found["headlines"]
    assert "first_wrong_step.hit_1" not in found["measures"]
    assert found["truths"]["results"]["completions"] >= 2
    assert found["continuations"]["continuations"] <= 20


def test_other_data_leave_out_what_they_cannot_tell(
    prepared: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(
        "".join(json.dumps({"problem": f"What is {i} + 1?", "answer": str(i + 1), "solution": ""}) + "\n" for i in range(4))
    )
    data = ["data=files", f"data.train.paths={path}", f"data.evaluation.test.paths={path}", "rollout.max_new_tokens=12"]
    prepared(*SMALL, *data, "lab.set=test")()
    found, rows = newest(tmp_path)
    assert "oracle" not in found["estimators"]
    assert "results" not in found["truths"]
    assert "left out lab.estimators.oracle: scorer.locate reads problems of data=chain or graph only" in caplog.text
    assert "lab: 6 of 6 completions have no text before an answer that is found" in caplog.text
    assert len(rows) == 6


@pytest.mark.parametrize("first", [0, -1])
def test_where_some_problems_are_of_another_task_none_is_read_by_its_rules(
    first: int, prepared: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever row comes first."""
    path = recorded(tmp_path)
    rows = path.read_text().splitlines()
    rows.insert(first % (len(rows) + 1), json.dumps({"problem": "What is 2+2?", "answer": "4", "completion": "So \\boxed{4}"}))
    path.write_text("\n".join(rows))
    prepared(*SMALL, f"lab.files=[{path}]", "lab.continuations=0")
    assert "left out lab.estimators.oracle: scorer.locate reads problems of data=chain or graph only" in caplog.text


def test_a_finished_lab_is_not_overwritten(prepared: Prepare, tmp_path: Path) -> None:
    run = prepared(*SMALL, f"lab.files=[{recorded(tmp_path)}]", "lab.continuations=0")
    run()
    (folder,) = {path.parent for path in tmp_path.rglob("results.json")}
    with pytest.raises(ConfigError, match=r"holds a lab \(results\.json\), and a new one would overwrite it; name another"):
        refuse_used(folder)
    content = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps({**content, "whole": False}))
    refuse_used(folder)  # it was stopped, and the command repeated goes on


def test_two_labs_do_not_share_a_folder(prepared: Prepare, tmp_path: Path) -> None:
    command = (*SMALL, f"lab.files=[{recorded(tmp_path)}]", "lab.continuations=0")
    run = prepared(*command)
    (lock,) = tmp_path.rglob(RUN_LOCK)
    with pytest.raises(ConfigError, match=rf"another process is at work in .*{lock.parent.name}; wait for its end"):
        prepared(*command, folder=lock.parent.name)
    run()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["resume=true"], "leave out resume and ckpt_path"),
        (["lab.baseline=none"], r"lab\.baseline=none is none of the estimators, which are random"),
        (["lab.set=test"], r"lab\.set=test must be train or one of data\.evaluation: chain"),
        (["lab.problems=0"], r"lab\.problems must be >= 1, got 0"),
        (["lab.decisive=0"], r"lab\.decisive .* must be finite and > 0, got 0"),
        (["lab.decisive=nan"], r"lab\.decisive .* must be finite and > 0, got nan"),
        (["lab.batch=3"], r"lab\.batch=3 must be even"),
        (["+lab.estimators.mine={}"], r"lab\.estimators\.mine has no scorer; set one"),
        (["+lab.estimators.mine=5"], r"lab\.estimators\.mine=5: give it a scorer"),
        (["+lab.estimators.oar_g.gat=1"], r"unknown key lab\.estimators\.oar_g\.gat; did you mean"),
        (
            ["+scorer@lab.estimators.mine.scorer=oar_g", "+gate@lab.estimators.mine.gate=signed"],
            r"lab\.estimators\.mine: SignedGate reads scores with a sign",
        ),
        (["+scorer@lab.estimators.mine.scorer=spro"], r"lab\.estimators\.mine: Spro .* lab\.past=\[<run folder>\], and"),
        (["lab.files=[none.jsonl]"], r"lab\.files=none\.jsonl: no such file"),
        (["+lab.truths.mine=5"], r"lab\.truths\.mine must be a lab\.truth\.Source"),
        (["lab.cache=."], r"lab\.cache=\. cannot be used"),
        (["lab.faithfulness.fills=[zero]"], r"lab\.faithfulness\.fills=\['zero'\] must be some of pad, "),
        (["engine=vllm"], r"lab\.faithfulness\.fills holds mean_embedding, which is no token, and engine=vllm"),
        (["lab.stability.radius=0"], r"lab\.stability\.radius must be finite and > 0, got 0"),
        (["loss=bnpo"], r"loss\.reduction=bnpo depends .*; set loss\.reduction=dapo, .* or lab\.gradients=null"),
        (["lab.gradients.blocks=1"], r"lab\.gradients\.blocks must be >= 2, got 1"),
        (["policy=fresh"], "policy=fresh is a random policy"),
    ],
)
def test_mistakes(overrides: list[str], message: str, prepared: Prepare) -> None:
    with pytest.raises((ConfigError, ValueError, HydraException), match=message):
        prepared("task=lab", "lab.cache=cache.db", *overrides)
