"""Every preset and every training and evaluation set composes, passes the checks and reads rows of its columns' shape."""

from __future__ import annotations

import dataclasses
import json
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pytest
from support.composing import checked, settings
from support.problem_files import overlapping_files

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.paths import conf_dir
from oar_lightning.data.chain.task import ChainProblems
from oar_lightning.data.graph.task import GraphProblems, GraphTask
from oar_lightning.data.hub import HubProblems
from oar_lightning.data.mixture import Mixture
from oar_lightning.data.prompts import PlainPrompt
from oar_lightning.data.stream import ProblemStream
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.training.run import keep_rule
from oar_lightning.wiring.settings import build_settings

# one row of each set as its publisher lays it out (columns of the dataset's card), and what it says
GSM8K = ({"question": "1+1?", "answer": "1+1=<<1+1=2>>2\n#### 2"}, "1+1?", "2")
ROWS: dict[tuple[str, str], tuple[dict[str, Any], str, str]] = {
    ("train", "gsm8k"): GSM8K,
    ("evaluation", "gsm8k"): GSM8K,
    ("train", "math"): (
        {"problem": "Half?", "level": "Level 1", "solution": "So $\\boxed{\\frac{1}{2}}$.", "type": "Algebra"},
        "Half?",
        "\\frac{1}{2}",
    ),
    ("train", "dapo_math"): (
        {
            "prompt": "Find $m+n$.",
            "solution": "34",
            "data_source": "math_dapo",
            "source_prompt": [{"content": "Solve ...", "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": "9a9b6eb4"},
        },
        "Find $m+n$.",
        "34",
    ),
    ("evaluation", "math500"): (
        {
            "problem": "Convert.",
            "solution": "\\boxed{9}",
            "answer": "9",
            "subject": "Precalculus",
            "level": 2,
            "unique_id": "test/precalculus/807.json",
        },
        "Convert.",
        "9",
    ),
    ("evaluation", "aime24"): (
        {"id": 60, "problem": "Aya walks.", "solution": "...", "answer": "204", "url": "u", "year": "2024"},
        "Aya walks.",
        "204",
    ),
    ("evaluation", "aime25"): ({"problem": "Bases.", "answer": "70", "id": "0"}, "Bases.", "70"),
    ("evaluation", "amc23"): ({"id": 0, "question": "Cities.", "answer": 27.0, "url": "u"}, "Cities.", "27.0"),
}
PRESETS = {
    "gsm8k": ("gsm8k", ["gsm8k"]),
    "math": ("math", ["math500"]),
    "dapo_math": ("dapo_math", ["math500", "aime24", "aime25", "amc23"]),
    "math500": (None, ["math500"]),
    "aime24": (None, ["aime24"]),
    "aime25": (None, ["aime25"]),
    "amc23": (None, ["amc23"]),
}


pytestmark = pytest.mark.usefixtures("hydra_conf")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def local(tmp_path: Path, kind: str, name: str, split: str) -> str:
    """A folder with three rows of the set in its split."""
    folder = tmp_path / kind / name
    folder.mkdir(parents=True)
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(ROWS[kind, name][0]) + "\n" for _ in range(3)))
    return str(folder)


def paths(tmp_path: Path, train: str | None, evaluation: list[str], at: str = "data.train") -> list[str]:
    """Overrides that put local folders in the place of the hub's sets."""
    splits = {"aime24": "train"}
    overrides = [f"data.evaluation.{n}.path={local(tmp_path, 'evaluation', n, splits.get(n, 'test'))}" for n in evaluation]
    return overrides + ([f"{at}.path={local(tmp_path, 'train', train, 'train')}"] if train else [])


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def test_every_file_is_tested_here() -> None:
    assert set(names("data")) == {*PRESETS, "chain", "files", "graph"}
    assert set(names("data/train")) == {name for kind, name in ROWS if kind == "train"} | {"chain", "files", "graph", "mixture"}
    assert set(names("data/evaluation")) == {name for kind, name in ROWS if kind == "evaluation"} | {"chain", "files", "graph"}


@pytest.mark.parametrize("path", sorted((conf_dir() / "data").rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_opens_with_its_command(path: Path) -> None:
    if path.parent.name != "prompt":
        assert "python -m oar_lightning" in path.read_text().splitlines()[0]


@pytest.mark.parametrize("preset", [name for name, (train, _) in PRESETS.items() if train])
def test_presets(tmp_path: Path, preset: str) -> None:
    train, evaluation = PRESETS[preset]
    assert train is not None
    built = settings(f"data={preset}", *paths(tmp_path, train, evaluation))
    assert list(built.eval_sets) == evaluation
    for source, key in [(built.train, ("train", train)), *((built.eval_sets[n], ("evaluation", n)) for n in evaluation)]:
        assert isinstance(source, HubProblems)
        problems = list(source)
        assert [(p.question, p.answer) for p in problems] == [ROWS[key][1:]] * 3
    assert next(iter(built.train or [])).solution == (
        "" if train == "dapo_math" else ROWS["train", train][0][built.train.columns.solution]
    )


@pytest.mark.parametrize("preset", [name for name, (train, _) in PRESETS.items() if not train])
def test_evaluation_sets_are_refused_for_training_until_one_chooses_problems(tmp_path: Path, preset: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"data={preset} is for evaluation only \(data.train=null\).*data=math.*data/train=math"
    ):
        settings(f"data={preset}")
    overrides = paths(tmp_path, "math", PRESETS[preset][1])
    built = settings(f"data={preset}", "data/train=math", *overrides)
    assert isinstance(built.train, HubProblems)
    assert list(built.eval_sets) == [preset]


def test_graph_problems_are_split_by_structure() -> None:
    built = settings("data=graph", "data.graph.modulus=7", "seed=3")
    assert (built.train, built.eval_sets) == (
        GraphProblems(GraphTask(modulus=7), "train", 3),
        {"graph": GraphProblems(GraphTask(modulus=7), "held_out", 0)},
    )
    with pytest.raises(ConfigError, match=r"data\.graph\.given=3, depth=5 and width=2 make more quantities"):
        settings("data=graph", "data.graph.depth=5", "data.graph.min_steps=5", "data.graph.max_steps=6")


def test_training_and_evaluation_sets_combine_freely(tmp_path: Path) -> None:
    overrides = paths(tmp_path, "dapo_math", ["aime24", "math500"])
    built = settings("data=gsm8k", "data/train=dapo_math", "data/evaluation=[aime24,math500,chain]", *overrides)
    assert isinstance(built.train, HubProblems)
    assert list(built.eval_sets) == ["aime24", "math500", "chain"]
    other = settings("data=gsm8k", "data/train=chain", "data/evaluation=chain", "data.chain.filler=3")
    assert isinstance(other.train, ChainProblems)
    assert other.train.task.filler == 3
    assert other.eval_sets["chain"].task == other.train.task


def test_files_for_evaluation_follow_the_columns_of_the_training_set(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": "2+2?", "answer": "#### 4"}) + "\n")
    built = settings(
        "data=gsm8k", "data/evaluation=[files]", f"data.evaluation.test.paths={rows}", *paths(tmp_path, "gsm8k", [])
    )
    assert [p.answer for p in built.eval_sets["test"]] == ["4"]
    rows.write_text(json.dumps({"problem": "2+2?", "answer": "4", "solution": ""}) + "\n")
    built = settings("data/evaluation=[chain,files]", f"data.evaluation.test.paths={rows}")
    assert [p.answer for p in built.eval_sets["test"]] == ["4"], "of generated problems there are no columns to follow"


def test_a_mixture(tmp_path: Path) -> None:
    overrides = [f"data.train.sources.{n}.path={local(tmp_path, 'train', n, 'train')}" for n in ("gsm8k", "math")]
    base = ["data=math", "data/train=mixture", *paths(tmp_path, None, ["math500"])]
    built = settings(*base, *overrides, "data.train.weights.math=3")
    assert isinstance(built.train, Mixture)
    assert built.train.weights == {"gsm8k": 1.0, "math": 3.0}
    seen = {(p.source, p.answer) for p in islice(built.train, 40)}
    assert seen == {("gsm8k", "2"), ("math", "\\frac{1}{2}")}
    swapped = settings(*base, "data/train@data.train.sources.gsm8k=chain", overrides[1])
    assert isinstance(swapped.train, Mixture)
    assert isinstance(swapped.train.sources["gsm8k"], ChainProblems)
    added = settings(*base, *overrides, "+data/train@data.train.sources.more=chain", "+data.train.weights.more=1")
    assert isinstance(added.train, Mixture)
    assert list(added.train.sources) == ["gsm8k", "math", "more"]
    with pytest.raises(ConfigError) as caught:
        settings(*base, *overrides, "+data.train.weights.mth=1")
    assert "data.train.weights names ['mth']" in str(caught.value.__cause__)


def test_the_hub_out_of_reach_is_told_before_a_policy_is_loaded() -> None:
    with pytest.raises(ConfigError, match=r"^data\.train\.path=openai/gsm8k .* cannot be read .*download it elsewhere"):
        settings("data=gsm8k")


def test_training_data_is_left_alone_where_nothing_is_trained(tmp_path: Path) -> None:
    cfg = checked("data=gsm8k", *paths(tmp_path, None, ["gsm8k"]))
    cfg.task = "evaluate"
    assert build_settings(cfg).train is None


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["data.decontaminate=maybe"], "data.decontaminate must be true or false, got 'maybe'"),
        (["data.max_prompt_tokens=0"], "data.max_prompt_tokens must be >= 1, or null for no limit, got 0"),
        (["data.max_prompt_tokens=many"], "got 'many'"),
        (["data.train._target_=builtins.dict"], "data.train._target_=builtins.dict makes a dict, which is no ProblemSource"),
        (
            ["+data.evaluation.hard.paths=x"],
            "data.evaluation.hard has no _target_, the class of its source; for files add +",
        ),
    ],
)
def test_bad_values_name_their_key(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(*overrides)
    assert expected in str(caught.value)


def test_a_warm_start_passes_over_problems_without_a_solution(tmp_path: Path) -> None:
    rows = [{"problem": f"q{i}", "answer": "1", "solution": "s" if i else None} for i in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows_file = f"{tmp_path / 'rows.jsonl'}"
    names = ("+experiment=warm_start", "policy=chain", "data=files", f"data.train.paths={rows_file}")
    built = settings(*names, f"data.evaluation.test.paths={rows_file}")
    assert built.train is not None
    keep = keep_rule(built, PlainPrompt(), PretrainedPolicy("chain").load_tokenizer())
    assert [problem.question for problem in built.train if keep(problem)] == ["q0"]
    without = dataclasses.replace(built, supervised=None)
    assert not any(map(keep_rule(without, PlainPrompt(), None), built.train))


def test_contaminated_and_over_long_problems_are_passed_over(tmp_path: Path) -> None:
    files = [*overlapping_files(tmp_path), "evaluation.problems=1"]
    tokenizer = PretrainedPolicy("chain").load_tokenizer()
    for overrides, longest, dropped in (
        ([], None, {}),
        ([], 100, {"prompt too long": 1}),
        (["data.decontaminate=true"], None, {"contaminated exact": 1}),
        (["data.decontaminate=true", "data.max_prompt_tokens=100"], 5000, {"contaminated exact": 1, "prompt too long": 1}),
    ):
        built = settings(*files, *overrides)
        assert built.train is not None
        stream = ProblemStream(built.train, 0, keep=keep_rule(built, PlainPrompt(), tokenizer, longest))
        kept = 4 - sum(dropped.values())
        assert len({p.question for p in stream.take(kept)}) == kept
        stream.take(1)  # into the next epoch, so that all of the first was walked
        assert all(stream.dropped[reason] >= count for reason, count in dropped.items())
        assert set(stream.dropped) == set(dropped)
