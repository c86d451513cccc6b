"""task=score: numbers that the scorer gives one completion alone, advantages by hand, texts that come back whole."""

from __future__ import annotations

import gzip
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.errors import HydraException
from support.composing import Prepare
from support.fixtures import built_in_policy, make_stage

from oar_lightning.common.config_check import ConfigError
from oar_lightning.credit.gates.bilevel import BilevelGate, gate_weights
from oar_lightning.credit.scorers import OarP
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.data.prompts import PlainPrompt
from oar_lightning.inspection import completion_scores
from oar_lightning.inspection.recorded import RecordedCompletion, encode_recorded, to_generation
from oar_lightning.policy.pretrained import Policy
from oar_lightning.rollout import HFEngineConfig
from oar_lightning.tasks import score as task
from oar_lightning.types import MathProblem

REAL = Path(__file__).parents[3] / "shared" / "data" / "math_model_outputs.jsonl"


def rows() -> list[dict[str, Any]]:
    """Two solutions each of two problems, one of a third, one without a gold answer, one without an answer."""
    out = []
    for number, problem in enumerate(first_problems(3)):
        wrong = problem.solution.replace("\\boxed{" + problem.answer, "\\boxed{99")
        own = {"problem": problem.question, "answer": problem.answer}
        out += [own | {"id": f"right{number}", "completion": problem.solution, "is_correct": True}]
        out += [own | {"id": f"wrong{number}", "completion": wrong, "is_correct": number == 1}] * (number < 2)
    out.append({"id": "no gold", "problem": "How many?", "completion": "Ann has 3.\n\\boxed{3}", "answer": None})
    out.append({"id": "no span", "problem": out[0]["problem"], "answer": out[0]["answer"], "completion": "<b>Ann"})
    out.append({"id": "long", "problem": "q", "answer": "1", "completion": "many " * 200})
    return out


def first_problems(count: int) -> list[MathProblem]:
    found: dict[str, MathProblem] = {}
    for problem in ChainProblems(ChainTask(noise=0.0)):
        found.setdefault(problem.question, problem)
        if len(found) == count:
            break
    return list(found.values())


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "recorded.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    return path


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task's policy in float64, in which a batch's rounding does not show."""
    original = task.load_policy

    def load(*args: Any) -> Policy:
        policy = original(*args)
        return Policy(policy.model.double(), policy.tokenizer)

    monkeypatch.setattr(task, "load_policy", load)


def scored(path: Path) -> dict[str, dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return {row["id"]: row for row in map(json.loads, text.splitlines())}


def overrides(recorded: Path, *more: str) -> list[str]:
    return ["task=score", f"score.files=[{recorded}]", "scorer=oar_p", "score.max_tokens=150", *more]


@pytest.mark.usefixtures("double")
def test_scores(prepared: Prepare, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepared(*overrides(recorded, "score.output=out/s.jsonl.gz", "score.heatmaps=2"))() is None
    found = scored(tmp_path / "out" / "s.jsonl.gz")
    expected = {row["id"]: row for row in rows() if row["id"] != "long"}
    assert set(found) == set(expected)
    model, scorer = built_in_policy(), OarP()
    model.model.double()
    stage = make_stage(model)
    for name, row in expected.items():
        mine = found[name]
        assert "".join(mine["tokens"]) == row["completion"]
        assert mine["gold"] == row["answer"]
        assert mine["label"] == row.get("is_correct")
        lengths = {len(mine[key]) for key in ("tokens", "regions", "importance", "weights", "entropy")}
        assert len(lengths) == 1
        # the scorer on this completion alone
        alone = RecordedCompletion(name, MathProblem(row["problem"], "0"), row["completion"])
        encoded = encode_recorded([alone], model.tokenizer, PlainPrompt())
        generation = to_generation(encoded, model.tokenizer.pad_token_id, torch.device("cpu"))
        rollouts = stage.judge(generation, [alone.problem], 1, 0)
        response = rollouts.response_mask[0]
        if mine["answer"] is None:
            assert set(mine["weights"]) == {1.0}
            assert set(mine["regions"]) == {"tail"}
            continue
        importance = scorer(model.model, rollouts)
        assert mine["importance"] == pytest.approx(importance[0, response].tolist(), rel=1e-5, abs=1e-12)
        weights = gate_weights(importance, rollouts.reasoning_mask, BilevelGate())[0, response]
        assert mine["weights"] == pytest.approx(weights.tolist(), rel=1e-5)
        assert [r == "reasoning" for r in mine["regions"]] == rollouts.reasoning_mask[0, response].tolist()
        answer = "".join(t for t, r in zip(mine["tokens"], mine["regions"], strict=True) if r == "answer")
        assert mine["answer"] in answer
        assert all(0 <= h < 6.3 for h in mine["entropy"])  # log of 512 ids is 6.24

    verdicts = {name: row["verdict"] for name, row in found.items()}
    assert {verdicts[f"right{i}"] for i in range(3)} == {"correct"}
    assert {verdicts[name] for name in ("wrong0", "wrong1", "no span")} == {"incorrect"}
    assert verdicts["no gold"] is None
    assert [found["no gold"][key] for key in ("reward", "advantage", "gold")] == [None] * 3
    assert found["right2"]["advantage"] is None, "nothing to compare it with"
    group = {"right0": 1.0, "wrong0": 0.0, "no span": 0.0}
    assert len({found[name]["problem_id"] for name in group}) == 1
    mean, std = statistics.mean(group.values()), statistics.stdev(group.values())
    assert [found[n]["advantage"] for n in group] == pytest.approx(
        [(r - mean) / (std + 1e-4) for r in group.values()], abs=1e-4
    )

    text = capsys.readouterr().out
    table = {cells[1].strip(): cells[2].strip() for line in text.splitlines() if len(cells := line.split("│")) == 4}
    assert (table["completions"], table["with an answer"], table["verdict no gold answer"]) == ("7", "6", "1")
    assert table["verdict agrees with label"] == "4 of 5"  # wrong1's label says correct
    assert [value for key, value in table.items() if key.startswith("rows of more than 150 tokens")] == ["1"]
    weights = [reasoning_weights(row) for row in found.values() if row["answer"] is not None]
    top = statistics.mean(sum(w[: max(1, round(0.1 * len(w)))]) / sum(w) for w in weights)
    assert float(table["mean top10_mass of the weights"]) == pytest.approx(top, abs=1e-3)
    pages = sorted(tmp_path.glob("out/*.html"))
    assert [p.name for p in pages] == ["s_heatmap_1.html", "s_heatmap_2.html"]


def reasoning_weights(row: dict[str, Any]) -> list[float]:
    """The largest first."""
    pairs = zip(row["weights"], row["regions"], strict=True)
    return sorted((weight for weight, region in pairs if region == "reasoning"), reverse=True)


@pytest.mark.parametrize("credit", ["scorer=oar_g", "scorer=entropy gate=select", "scorer=steer gate=direct"])
@pytest.mark.usefixtures("double")
def test_scores_do_not_depend_on_the_batch(credit: str, prepared: Prepare, recorded: Path, tmp_path: Path) -> None:
    for name, batch in (("one", 1), ("many", 16)):
        own = (f"score.output={name}.jsonl", f"score.batch={batch}", "score.heatmaps=0", *credit.split())
        prepared(*overrides(recorded, *own))()
    one, many = scored(tmp_path / "one.jsonl"), scored(tmp_path / "many.jsonl")
    assert list(one) == list(many)
    for name, row in one.items():
        for key, value in row.items():
            numbers = key in ("importance", "weights", "entropy")
            assert many[name][key] == (pytest.approx(value, rel=2e-5, abs=1e-12) if numbers else value), (name, key)
    assert not list(tmp_path.glob("*.html"))


def test_ctrl_c_leaves_what_was_written(
    prepared: Prepare, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(completion_scores, "WINDOW_BATCHES", 1)
    original, calls = task.write_heatmap, []

    def interrupting(*args: Any) -> None:
        original(*args)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(task, "write_heatmap", interrupting)
    with pytest.raises(SystemExit) as caught:
        prepared(*overrides(recorded, "score.output=s.jsonl.gz", "score.batch=1", "scorer=uniform"))()
    assert caught.value.code == 130
    assert list(scored(tmp_path / "s.jsonl.gz")) == ["right0", "wrong0", "no span", "right1", "wrong1"]
    assert "holds the 5 completions" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["score.files=[]"], r"score\.files is empty"),
        (["score.files=[none.jsonl]"], r"score\.files=none\.jsonl: no such file"),
        (["score.output=there.jsonl"], r"score\.output=there\.jsonl exists"),
        (["score.output=there.jsonl/x.jsonl"], r"score\.output=there\.jsonl/x\.jsonl cannot be written"),
        (["score.output=scores.csv"], r"score\.output must end in \.jsonl or \.jsonl\.gz, got scores\.csv"),
        (["score.batch=0"], r"score\.batch must be >= 1, got 0"),
        (["score.limit=0"], r"score\.limit must be >= 1 or null, got 0"),
        (["resume=true"], "task=score does not resume"),
        (["policy=fresh"], "policy=fresh is a random policy"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    prepared: Prepare, recorded: Path, tmp_path: Path, change: list[str], message: str
) -> None:
    (tmp_path / "there.jsonl").write_text("")
    with pytest.raises((ValueError, HydraException)) as caught:
        prepared(*overrides(recorded, *change))
    error = caught.value.__cause__ if isinstance(caught.value, HydraException) else caught.value  # a wrapper
    assert isinstance(error, ValueError)
    assert re.search(message, str(error))


def test_continuations_are_sampled_by_the_chosen_engine(
    prepared: Prepare, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, engines = task.build_stage, []

    def spy(*args: Any) -> Any:
        engines.append(args[-1])
        return original(*args)

    monkeypatch.setattr(task, "build_stage", spy)
    prepared(*overrides(recorded, "scorer=monte_carlo", "gate=signed", "engine=hf"))
    (engine,) = engines
    assert isinstance(engine, HFEngineConfig)


def test_a_file_without_a_usable_row_is_refused(prepared: Prepare, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": None, "completion": "x"}))
    with pytest.raises(ConfigError, match=r"no usable row .*rows without a problem"):
        prepared(*overrides(tmp_path / "a.jsonl"))


def test_a_file_of_which_no_row_can_be_scored_is_an_error_and_leaves_none(
    prepared: Prepare, recorded: Path, tmp_path: Path
) -> None:
    work = prepared(*overrides(recorded, "score.max_tokens=1", "score.output=none.jsonl"))
    with pytest.raises(ConfigError, match=r"score\.files: no row could be scored, all were left out: \{.*: \d"):
        work()
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize(
    "scorer",
    [["+experiment=oracle", "scorer=oracle"], ["scorer=oar_p_steps", "scorer/segments=task_steps"]],
    ids=["oracle", "task_steps"],
)
def test_problems_that_the_scorer_does_not_know_are_found_before_scoring(
    prepared: Prepare, tmp_path: Path, scorer: list[str]
) -> None:
    known = first_problems(1)[0]
    rows = [{"problem": q, "answer": "1", "completion": "\\boxed{1}"} for q in (known.question, "Bob has 2 pears. How many?")]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match=r"score\.files: problem .*Bob has 2 pears"):
        prepared(*overrides(tmp_path / "mixed.jsonl", *scorer))


def test_an_error_before_the_first_score_leaves_no_empty_file(
    prepared: Prepare, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = prepared(*overrides(recorded, "score.output=out.jsonl"))
    monkeypatch.setattr(completion_scores, "assign_credit", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        work()
    assert not (tmp_path / "out.jsonl").exists()


def test_ctrl_c_before_the_first_score_leaves_none(
    prepared: Prepare, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    work = prepared(*overrides(recorded, "score.output=out.jsonl.gz"))
    monkeypatch.setattr(completion_scores, "assign_credit", interrupt)
    with pytest.raises(SystemExit):
        work()
    assert not (tmp_path / "out.jsonl.gz").exists()
    assert "stopped before anything was scored" in caplog.text


def test_heat_maps_of_another_output_are_not_overwritten(prepared: Prepare, recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "s_heatmap_3.html").write_text("other")
    with pytest.raises(ConfigError, match=r"score\.output=.*s\.jsonl\.gz would leave heat-maps among .*\(s_heatmap_3\.html\)"):
        prepared(*overrides(recorded, "score.output=s.jsonl.gz"))
    prepared(*overrides(recorded, "score.output=s.jsonl.gz", "score.heatmaps=0"))


def test_signed_scores_are_not_read_as_importance(prepared: Prepare, recorded: Path) -> None:
    with pytest.raises(ConfigError, match="scores with a sign, which BilevelGate cannot read; use gate=signed"):
        prepared(*overrides(recorded, "scorer=otb"))


@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL.name} is not beside this checkout")
def test_real_outputs(prepared: Prepare, tmp_path: Path) -> None:
    """The first problem's eight samples: spans on real text, verdicts as the publisher's labels."""
    real = {row["id"]: row for row in map(json.loads, REAL.read_text().splitlines()[:8])}
    slow = "reward.terms.accuracy.verifier.timeout_s=30"
    prepared(*overrides(REAL, "score.output=s.jsonl", "score.limit=8", "score.max_tokens=null", "scorer=position", slow))()
    found = scored(tmp_path / "s.jsonl")
    assert set(found) == set(real)
    for name, row in found.items():
        assert "".join(row["tokens"]) == real[name]["completion"]
        assert row["answer"] == real[name]["pred"]
        assert (row["verdict"] == "correct") == real[name]["is_correct"]
    assert len({row["problem_id"] for row in found.values()}) == 1
