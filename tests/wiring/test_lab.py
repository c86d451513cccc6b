"""The problems of a lab are those of training, or of an evaluation set."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hydra.utils import instantiate
from support.composing import checked
from support.problem_files import overlapping_files

from oar_lightning.lab import LabConfig
from oar_lightning.objective.loss import LossConfig
from oar_lightning.rollout import AutoEngineConfig
from oar_lightning.wiring.lab import check_measures, choose_problems


def test_training_problems_are_those_that_training_would_take(
    hydra_conf: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = ["task=lab", "lab.problems=4", *overlapping_files(tmp_path)]
    caplog.set_level(logging.INFO)
    for overrides, left_out in (
        ([], set[str]()),
        (["data.max_prompt_tokens=100"], {"long"}),
        (["data.decontaminate=true", "data.max_prompt_tokens=100"], {"long", "Ann"}),
        (["lab.set=test", "lab.problems=2", "data.decontaminate=true"], None),
    ):
        caplog.clear()
        cfg = checked(*files, *overrides)
        found = choose_problems(cfg, instantiate(cfg.lab, _convert_="all"), instantiate(cfg.policy))
        if left_out is None:
            assert [p.question for p in found] == ["unseen", "ann has 3 apples"]
        else:
            assert {p.question.split()[0] for p in found} == {"Ann", "short", "long", "fine"} - left_out
            assert ("data.train: left out" in caplog.text) == bool(left_out)
            assert ("the training set has" in caplog.text) == bool(left_out)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (LabConfig(), []),
        (LabConfig(problems=3, samples=2, set="test", batch=4), []),
        (LabConfig(problems=3, files=["a.jsonl"], limit=5), ["lab.problems=3: without effect, since lab.files names"]),
        (LabConfig(limit=5, max_tokens=None), ["lab.limit=5: without effect, since lab.files is empty"]),
        (LabConfig(continuations=0, budget=9), ["lab.budget=9: without effect, since lab.continuations=0"]),
    ],
)
def test_settings_without_effect_are_told(config: LabConfig, told: list[str], caplog: pytest.LogCaptureFixture) -> None:
    check_measures(config, AutoEngineConfig(), LossConfig())
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(told)
    assert all(message.startswith(start) for message, start in zip(messages, told, strict=True))
