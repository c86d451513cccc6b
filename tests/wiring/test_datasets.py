"""What MLflow is told of a run's problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow.data.huggingface_dataset_source import HuggingFaceDatasetSource
from omegaconf import OmegaConf
from support.composing import composed

from oar_lightning.types import MathProblem
from oar_lightning.wiring.data import build_eval_sets, build_train
from oar_lightning.wiring.datasets import datasets

pytestmark = pytest.mark.usefixtures("hydra_conf")


def test_the_built_in_task() -> None:
    cfg = composed("+experiment=smoke")
    problems = [problem for problem, _ in zip(build_eval_sets(cfg)["chain"], range(80), strict=False)]
    train, held_out = datasets(cfg, build_train(cfg), {"chain": problems})
    assert (train["name"], train["context"], json.loads(train["profile"])) == ("chain", "train", {"num_rows": "endless"})
    assert (held_out["name"], held_out["context"], json.loads(held_out["profile"])) == ("chain", "evaluation", {"num_rows": 80})
    assert json.loads(train["source"])["split"] == "train"
    digests = {train["digest"], held_out["digest"]}
    for other in (problems[:79], [*problems[:79], MathProblem("1+1?", "2")]):
        digests.add(datasets(cfg, None, {"chain": other})[0]["digest"])
    assert len(digests) == 4, "every problem and their number count"
    assert datasets(cfg, None, {"chain": problems}) == [held_out]


def test_files_are_counted_and_read(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    found = []
    for answer in ("2", "3"):
        file.write_text(json.dumps({"problem": "1+1?", "answer": answer, "solution": ""}) + "\n")
        cfg = composed("data=files", f"data.train.paths=[{file}]", "data/evaluation=chain")
        found.append(datasets(cfg, build_train(cfg), {})[0])
    assert json.loads(found[0]["profile"]) == {"num_rows": 1}
    assert json.loads(found[0]["source"])["paths"] == [str(file)]
    assert found[0]["digest"] != found[1]["digest"]


def test_mlflow_reads_the_source_of_a_hub_set() -> None:
    cfg = composed("data=gsm8k")
    (record,) = datasets(cfg, None, {"gsm8k": [MathProblem("1+1?", "2")]})
    assert record["source_type"] == HuggingFaceDatasetSource._get_source_type()
    source = HuggingFaceDatasetSource.from_json(record["source"])
    assert (source.path, source.split) == ("openai/gsm8k", "test")


def test_a_source_has_no_credentials() -> None:
    cfg = OmegaConf.create({"data": {"name": "own", "evaluation": {"own": {"_target_": "mine.Problems", "api_key": "word"}}}})
    (record,) = datasets(cfg, None, {"own": [MathProblem("1+1?", "2")]})
    assert json.loads(record["source"]) == {"_target_": "mine.Problems", "api_key": "***"}
