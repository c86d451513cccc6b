"""A run's folder as facts of a model card; tests/tasks/test_export.py has a run's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.composing import composed

from oar_lightning.policy.model_card import UNKNOWN, Accuracy, CardFacts, DataSource, model_card
from oar_lightning.wiring.config import plain
from oar_lightning.wiring.model_card import accuracies, card_facts, unmixed


def facts(folder: Path, config: Any, step: int = 8, problems: dict[str, int | None] | None = None, **more: Any) -> CardFacts:
    (folder / "artifacts").mkdir(exist_ok=True)
    (folder / "artifacts" / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    origin = {"overrides": ["seed=3"], "revisions": ["a", "b"], "problems": problems or {}, **more}
    (folder / "artifacts" / "origin.json").write_text(json.dumps(origin))
    return card_facts(folder, step, ())


@pytest.mark.usefixtures("hydra_conf")
def test_a_run_on_files(tmp_path: Path) -> None:
    overrides = ["data=files", "data.train.paths=[/x/a.jsonl,b.csv]", "data.evaluation.test.paths=/x/c.jsonl", "seed=3"]
    own = ["+reward.terms.mine._target_=oar_lightning.answers.reward.Format"]
    counted = {"training": 100, "evaluation: test": 20}
    found = facts(tmp_path, plain(composed("+experiment=oar_g", "update.inner_epochs=2", *own, *overrides)), 8, counted)
    assert (found.name, found.seed, found.revision) == ("oar_g", 3, "a, then b")
    assert found.command == "python -m oar_lightning seed=3"
    assert found.base is not None
    assert found.base.words == "chain, which comes with oar_lightning"
    assert list(found.data) == [
        DataSource("training", "local files: a.jsonl, b.csv", "100; 128 drawn, 8 completions each", UNKNOWN),
        DataSource("evaluation: test", "local files: c.jsonl", "20", UNKNOWN),
    ]
    shown = dict(found.settings)
    assert shown["scorer"].startswith("OarG: ")
    assert shown["gate"].startswith("BilevelGate: tau=0.4, beta=2.0")
    assert shown["optimizer"].startswith("AdamW: lr=0.0006, betas=[0.95, 0.99]")
    assert shown["reward.weights"] == "accuracy=1.0, format=0.0, overlong=0.0, mine=1.0"
    assert "supervised" not in shown


@pytest.mark.usefixtures("hydra_conf")
def test_a_mixture_from_the_hub_and_a_warm_start(tmp_path: Path) -> None:
    hub = ["data=math", "data/train=mixture", "policy=hf", "policy.name=no-such/model", "data/prompt=chat"]
    found = facts(tmp_path, plain(composed("+experiment=grpo", *hub, "data/evaluation=[math500]")))
    assert [(d.hub_id, d.problems) for d in found.data] == [
        ("openai/gsm8k", "256 drawn, 8 completions each; 0.5 of the draws"),
        ("DigitalLearningGmbH/MATH-lighteval", "256 drawn, 8 completions each; 0.5 of the draws"),
        ("HuggingFaceH4/MATH-500", "not counted"),
    ]
    assert found.data[0].words == "openai/gsm8k, name main, split train"
    warm = facts(tmp_path, plain(composed("+experiment=warm_start")), 2)
    assert warm.base is not None
    assert warm.base.licence is None
    assert warm.data[0].problems == "256 drawn"
    assert warm.settings[0][0] == "supervised"


def test_a_mixture_within_a_mixture_is_its_sources() -> None:
    hub, own = {"path": "openai/gsm8k"}, {"_target_": "oar_lightning.data.chain.task.ChainProblems"}
    inner = {"_target_": "oar_lightning.data.mixture.Mixture", "sources": {"a": hub, "b": own}, "weights": {"a": 3, "b": 1}}
    outer = inner | {"sources": {"x": inner, "y": own}, "weights": {"x": 1.0, "y": 1.0}}
    assert list(unmixed(outer)) == [(hub, 0.375), (own, 0.125), (own, 0.5)]
    for damaged in (outer | {"weights": {"x": 1.0}}, outer | {"weights": None}, hub):
        assert list(unmixed(damaged)) == [(damaged, 1.0)]


@pytest.mark.usefixtures("hydra_conf")
def test_what_was_drawn_is_what_the_run_itself_drew(tmp_path: Path) -> None:
    """With two steps a batch, from step 3 on: step 4 ends a batch of the run before."""
    first = {"overrides": ["seed=3"], "revisions": ["a"], "problems": {}}
    fork = {"step": 3, "changed": ["update.problems"], "origin": first}
    config = plain(composed("+experiment=oar_g", "update.inner_epochs=2", "update.problems=5"))
    found = facts(tmp_path, config, 8, parent=fork)
    assert found.data[0].problems == "10 drawn after step 3, 8 completions each"
    assert found.former == [(3, ["update.problems"])]
    warm = facts(tmp_path, plain(composed("+experiment=warm_start", "supervised.batch_size=4")), 8, parent=fork)
    assert warm.data[0].problems == "20 drawn after step 3"


def test_first_and_last_of_each_set() -> None:
    def row(step: int, name: str, value: float) -> dict[str, Any]:
        metrics = {"avg_at_2": value, "avg_at_2_low": value - 0.1, "avg_at_2_high": value + 0.1, "answered": 1.0}
        return {"step": step, "benchmark": name, "metrics": metrics}

    history = [row(0, "a", 0.2), row(0, "b", 0.3), row(4, "a", 0.4), row(4, "b", 0.5), row(8, "a", 0.6), row(8, "b", 0.7)]
    assert list(accuracies(history)) == [
        Accuracy("a", "avg_at_2", "20.0 % [10.0, 30.0]", "60.0 % [50.0, 70.0]", 0.6),
        Accuracy("b", "avg_at_2", "30.0 % [20.0, 40.0]", "70.0 % [60.0, 80.0]", 0.7),
    ]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"task": "train", "policy": "x", "data": [], "seed": "y", "update": 3, "optimizer": None},
        {"task": "train", "data": {"train": {"sources": {1: None, "b": {}}, "weights": []}, "evaluation": {"x": "y"}}},
        {"task": "train", "policy": {"name": "x" * 5000}, "data": {"train": {"path": "a\0b"}}},
        {"task": "warm_start", "supervised": {"batch_size": "many"}, "data": {"train": {"paths": {}}}, "policy": {"name": 3}},
        {
            "task": ["train"],
            "policy": {"name": ""},
            "data": {"train": {"path": 7}, "evaluation": {"x": {"path": "~no-such-user/y"}}},
        },
        {
            "task": "train",
            "update": {"problems": 1, "group_size": 2, "inner_epochs": 0, "minibatches": 0},
            "data": {"train": {}},
        },
    ],
    ids=range(7),
)
def test_a_config_that_is_none_gives_a_card_all_the_same(tmp_path: Path, config: Any) -> None:
    assert model_card(facts(tmp_path, config)).endswith("\n")
