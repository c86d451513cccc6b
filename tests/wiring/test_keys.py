"""A config has the blocks of its own task and no other's; a block without its task is refused with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf
from support.composing import checked, composed, composed_whole

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.paths import conf_dir
from oar_lightning.tasks import TASKS
from oar_lightning.wiring.keys import top_level_keys
from oar_lightning.wiring.refusals import explain

pytestmark = pytest.mark.usefixtures("hydra_conf")

BLOCKS: dict[str, dict[str, str]] = {
    "train": {},
    "evaluate": {},
    "warm_start": {"supervised.batch_size": "8"},
    "export": {"supervised.tokenizer_problems": "100", "push_to_hub": "me/mine", "push_private": "False"},
    "decontaminate": {"decontaminate.output": "found.json"},
    "audit": {"audit.output": "out.json"},
    "score": {"score.limit": "3"},
    "lab": {"lab.problems": "3"},
    "sync": {"sync.folder": "my_runs"},
    "plan": {"plan.card_gb": "h100"},
    "report": {"sweep": "methods", "report.name": "mine"},
    "benchmark": {"benchmark.output": "wide.json"},
}
"""Task -> a setting of each block that it brings."""

FOREIGN = {
    "supervised.batch_size=8": ("supervised", "task=export and task=warm_start"),
    "decontaminate.output=x": ("decontaminate", "task=decontaminate"),
    "push_to_hub=me/mine": ("push_to_hub", "task=export"),
    "audit.files=[x]": ("audit", "task=audit"),
    "score.limit=3": ("score", "task=score"),
    "lab.problems=3": ("lab", "task=lab"),
    "sync.folder=x": ("sync", "task=sync"),
    "plan.card_gb=h100": ("plan", "task=plan"),
    "sweep=methods": ("sweep", "task=report"),
    "report.name=mine": ("report", "task=report"),
    "benchmark.output=x": ("benchmark", "task=benchmark"),
    "benchmark=wide": ("benchmark", "task=benchmark"),
}
"""An override of a block without its task -> the block, and which tasks read it."""


def test_there_is_a_file_for_every_task() -> None:
    files = {path.stem for path in (conf_dir() / "task").glob("*.yaml")}
    assert files == set(TASKS) == set(BLOCKS)


@pytest.mark.parametrize("task", BLOCKS)
def test_a_task_brings_its_own_blocks(task: str) -> None:
    given = BLOCKS[task]
    cfg = checked(f"task={task}", *(f"{key}={value}" for key, value in given.items()))
    assert (cfg.task, cfg.name) == (task, task)
    assert {key: str(OmegaConf.select(cfg, key)) for key in given} == given
    assert set(cfg) - set(composed()) == {key.split(".")[0] for key in given}
    assert set(cfg) == top_level_keys(task)


@pytest.mark.parametrize("overrides", [[], ["task=train"], ["+experiment=oar_g"], ["+experiment=paper_qwen2_5_7b"]])
def test_a_training_run_has_no_block_of_another_task(overrides: list[str]) -> None:
    cfg = composed(*overrides)
    assert cfg.task == "train"
    assert not {block for block, _ in FOREIGN.values()} & set(cfg)


@pytest.mark.parametrize(
    ("overrides", "task", "key", "value"),
    [
        (["benchmark=wide", "benchmark.output=x", "task=benchmark"], "benchmark", "benchmark.preset", "wide"),
        (["task=benchmark"], "benchmark", "benchmark.preset", "tiny"),
        (
            ["task=benchmark", "+scorer@benchmark.variants.position=position"],
            "benchmark",
            "benchmark.variants.position._target_",
            "oar_lightning.credit.scorers.Position",
        ),
        (["task=report", "sweep=methods"], "report", "report.sweep", "methods"),
        (["task=plan", "+experiment=oar_g"], "plan", "name", "oar_g"),
        (["+experiment=warm_start", "supervised.batch_size=8"], "warm_start", "supervised.batch_size", 8),
        # a run's overrides go on, whatever the task: the policy of a checkpoint is built from them
        (["+experiment=warm_start", "supervised.batch_size=8", "task=export"], "export", "name", "warm_start"),
        (["task=train", "task=evaluate"], "evaluate", "name", "evaluate"),
    ],
)
def test_the_documented_ways_to_choose_a_task(overrides: list[str], task: str, key: str, value: object) -> None:
    cfg = checked(*overrides)
    assert cfg.task == task
    assert OmegaConf.select(cfg, key) == value


def test_the_folder_of_a_run_is_named_after_its_task_or_experiment() -> None:
    assert composed_whole("task=audit").hydra.run.dir.startswith("outputs/audit/seed0/")
    assert composed_whole("task=plan", "+experiment=oar_g").hydra.run.dir.startswith("outputs/oar_g/seed0/")


@pytest.mark.parametrize(("override", "block", "tasks"), [(override, *read) for override, read in FOREIGN.items()])
def test_a_block_without_its_task_is_refused_with_the_remedy(override: str, block: str, tasks: str) -> None:
    remedy = f"{block} is read by {tasks} only; set the task, or leave {block} out"
    with pytest.raises(ConfigError, match=remedy):  # Hydra advises to add it by +
        checked(f"+{override}")
    with pytest.raises(HydraException) as refused:
        composed(override)
    assert explain(refused.value, [override]) == remedy


def test_a_method_of_the_benchmark_is_refused_without_it() -> None:
    with pytest.raises(ConfigError, match="benchmark is read by task=benchmark only"):
        checked("+scorer@benchmark.variants.position=position")


def test_a_task_set_as_a_plain_key_lacks_its_block(tmp_path: Path) -> None:
    """As an experiment file of before tasks were a group would."""
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "mine.yaml").write_text("# @package _global_\ntask: warm_start\n")
    with pytest.raises(ConfigError, match=r"reads supervised, which is missing; .*`override /task: warm_start`"):
        checked(f"hydra.searchpath=[{tmp_path}]", "+experiment=mine")
