"""What counts as another config, and what a resumed run may change."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from support.composing import composed

from oar_lightning.common.config_check import ConfigError
from oar_lightning.wiring.config import plain
from oar_lightning.wiring.kept_config import MAY_CHANGE, Change, changed_since, changes, refusal, refuse_another_task

pytestmark = pytest.mark.usefixtures("hydra_conf")


DECIDES: dict[str, tuple[str, Any, Any]] = {
    "gate.tau=0.9": ("gate.tau", 0.4, 0.9),
    "seed=1": ("seed", 0, 1),
    "optimizer.betas=[0.9,0.99]": ("optimizer.betas", [0.95, 0.99], [0.9, 0.99]),
    "trainer.precision=bf16-mixed": ("trainer.precision", "32-true", "bf16-mixed"),
    "evaluation.samples=8": ("evaluation.samples", 4, 8),
    "update.group_size=4": ("update.group_size", 8, 4),
    "data.chain.filler=1": ("data.train.task.filler", 2, 1),
    "reward.weights.format=0.5": ("reward.weights.format", 0.0, 0.5),
    "scorer=oar_p": ("scorer._target_", "oar_lightning.credit.scorers.OarG", "oar_lightning.credit.scorers.OarP"),
    "policy.name=other": ("policy.name", "chain", "other"),
    "task=warm_start": ("task", "train", "warm_start"),
    "+trainer.gradient_clip_algorithm=value": ("trainer.gradient_clip_algorithm", None, "value"),
}
"""Override -> the key that it changes, and its two values."""

FREE = [
    *("trainer.max_steps=9", "logger=[mlflow,csv]", "num_threads=1", "trainer.devices=2", "update.token_budget=500"),
    *("scorer.token_budget=auto", "checkpoint_every_n_steps=1", "checkpoints.best=2", "divergence.max_skipped_steps=9"),
    *("callbacks=device_stats", "resume=true", "name=mine", "evaluation.every_n_steps=7", "+trainer.detect_anomaly=true"),
]


def test_what_decides_what_is_learnt_is_a_change() -> None:
    found = list(changes(plain(composed("scorer=oar_g")), plain(composed(*DECIDES))))
    assert {(c.key, str(c.before), str(c.now)) for c in found} >= {(k, str(a), str(b)) for k, a, b in DECIDES.values()}


def test_what_may_change_is_none() -> None:
    assert not list(changes(plain(composed("scorer=oar_g")), plain(composed("scorer=oar_g", *FREE))))


def test_a_key_that_is_new_or_gone_has_its_default() -> None:
    """A newer version of the package may have more settings."""
    before = plain(composed("scorer=oar_g"))
    older = copy.deepcopy(before)
    del older["gate"]["floor"], older["callbacks"], older["checkpoints"], older["trainer"]["fast_dev_run"]
    assert not list(changes(older, before))
    assert not list(changes(before, older))
    older["gate"]["_target_"] = "oar_lightning.credit.gate.GateConfig"
    assert not list(changes(older, before)), "a class that was renamed"
    other = copy.deepcopy(before)
    other["gate"]["floor"] = 0.2
    assert [str(change) for change in changes(older, other)] == ["gate.floor: 0.1 -> 0.2"]


def test_credentials_are_neither_compared_nor_shown() -> None:
    """What a folder keeps has none."""
    before = {"judge": {"api_key": "***", "url": "http://host/v1", "model": "a"}}
    now = {"judge": {"api_key": "word", "url": "http://me:word@host/v1", "model": "a"}}
    assert not list(changes(before, now))
    other = {"judge": now["judge"] | {"url": "http://me:word@other/v1"}}
    assert [str(change) for change in changes(before, other)] == ["judge.url: http://host/v1 -> http://other/v1"]


def test_values_are_compared_as_yaml_knows_them() -> None:
    before = {"a": (1, 2), "b": float("nan"), "c": 1, "d": {}}
    assert not list(changes(before, {"a": [1, 2], "b": float("nan"), "c": 1.0, "d": {}}))
    assert list(changes({"a": {"_target_": "builtins.dict"}}, {"a": None})) == [
        Change("a", {"_target_": "builtins.dict"}, None)
    ]
    assert [str(c) for c in changes({}, {"a": {"b": 1}})] == ['a: nothing -> {"b": 1}']


def test_every_key_of_the_table_exists() -> None:
    """A renamed key would silently be a change again."""
    more = ["scorer=shuffled", "engine=vllm", "callbacks=early_stopping", "logger=csv", "+debug=profile"]
    more += ["+trainer.strategy=ddp", "+trainer.callbacks=[]", "+trainer.detect_anomaly=true"]
    more += ["+trainer.benchmark=true", "+optimizer.foreach=false"]
    configs = [composed(*more), composed("scorer=oar_g"), composed("scorer=inverted", "scorer@scorer.inner=shuffled")]
    configs.append(composed("scorer=capo", "scorer/judge=endpoint", "scorer.judge.url=x", "scorer.judge.model=y"))
    lightning = {f"trainer.{name}" for name in ("enable_progress_bar", "enable_model_summary")}
    missing = object()
    absent = {k for k in MAY_CHANGE if all(OmegaConf.select(c, k, default=missing) is missing for c in configs)}
    assert absent == lightning


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "artifacts"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(composed("scorer=oar_g"), resolve=True))
    (folder / "problems.json").write_text(json.dumps({"data.train": "aa", "data.evaluation.chain": "bb"}))
    return tmp_path / "run"


def test_a_run_is_compared_with_what_its_folder_keeps(run_dir: Path) -> None:
    same = {"data.train": "aa", "data.evaluation.chain": "bb"}
    assert changed_since(run_dir, plain(composed("scorer=oar_g")), same) == []
    found = changed_since(run_dir, plain(composed("scorer=oar_g", "gate.tau=0.9")), same | {"data.train": "cc"})
    assert [str(change) for change in found] == ["gate.tau: 0.4 -> 0.9", "content of data.train: aa -> cc"]
    older = plain(composed("scorer=oar_g"))
    del older["entropy"]
    (run_dir / "artifacts" / "config.yaml").write_text(OmegaConf.to_yaml(older))
    assert changed_since(run_dir, plain(composed("scorer=oar_g")), same) == [], "a block that older versions lack"
    (change,) = changed_since(run_dir, plain(composed("scorer=oar_g", "entropy=adaptive")), same)
    assert change.key == "entropy._target_"
    message = str(refusal(run_dir, found))
    assert "\n" not in message
    for part in (str(run_dir), "gate.tau: 0.4 -> 0.9; content of data.train", "Give the old values", "resume_changed=true"):
        assert part in message
    (run_dir / "artifacts" / "problems.json").unlink()
    assert changed_since(run_dir, plain(composed("scorer=oar_g")), {"data.train": "cc"}) == [], "one from before it kept them"


@pytest.mark.parametrize(
    ("key", "before", "now"), [("update.token_budget", None, 100), ("trainer.devices", 1, 2), ("trainer.num_nodes", 1, 2)]
)
def test_what_divides_passes_counts_where_the_loss_is_a_mean_over_them(key: str, before: int, now: int, run_dir: Path) -> None:
    config = composed("scorer=oar_g", "loss=bnpo", "trainer.num_nodes=1", "trainer.devices=1")
    (run_dir / "artifacts" / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    given = ["scorer=oar_g", "trainer.num_nodes=1", "trainer.devices=1", f"{key}={now}"]
    (change,) = changed_since(run_dir, plain(composed("loss=bnpo", *given)), {})
    assert (change.key, change.before, change.now) == (f"{key} (with loss.reduction=bnpo)", before, now)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["loss.kl_coef=0.1", "loss.kl_from=0.5"], "loss.kl_from=0.5"),
        (["advantage.confidence_from=0.6"], "advantage.confidence_from=0.6"),
        (["curriculum=difficulty"], "curriculum.second_stage=0.6"),
        (["loss.kl_from=0.5"], None),
        (["curriculum=difficulty", "curriculum.second_stage=1"], None),
    ],
)
def test_more_steps_are_another_run_where_something_begins_at_a_share_of_them(
    overrides: list[str], named: str | None, run_dir: Path
) -> None:
    """It had begun, would end, and would begin again."""
    config = composed("trainer.max_steps=100", *overrides)
    (run_dir / "artifacts" / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    assert changed_since(run_dir, plain(config), {}) == []
    found = changed_since(run_dir, plain(composed("trainer.max_steps=300", *overrides)), {})
    assert [str(change) for change in found] == ([] if named is None else [f"trainer.max_steps (with {named}): 100 -> 300"])


def test_a_run_that_keeps_none_goes_on_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert changed_since(tmp_path, {"a": 1}, {"data.train": "aa"}) == []
    assert "keeps no config to compare with" in caplog.text


@pytest.mark.parametrize("content", ["a: [", "- 1", "", "!!python/object/apply:os.abort []"])
def test_a_kept_config_that_cannot_be_read_is_an_error(run_dir: Path, content: str) -> None:
    (run_dir / "artifacts" / "config.yaml").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.yaml (cannot be read|holds no config)"):
        changed_since(run_dir, plain(composed()), {})


def test_a_job_of_another_task_does_not_take_a_runs_folder(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"hydra\.run\.dir=.*run holds a job of task=train, and one of task=evaluate .* another"
    ):
        refuse_another_task(run_dir, "evaluate")
    refuse_another_task(run_dir, "train")
    refuse_another_task(tmp_path / "new", "evaluate")
