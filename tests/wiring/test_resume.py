"""Which checkpoint a run resumes from, and what is said where there is none. Whole runs are in tests/system."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from oar_lightning.common.config_check import ConfigError
from oar_lightning.training.callbacks.checkpoint import CHECKPOINTS, LAST
from oar_lightning.wiring.resume import (
    FINISHED,
    Saved,
    check_steps_left,
    find_checkpoint,
    forget_finished,
    is_finished,
    mark_finished,
)


def config(root: Path, **more: object) -> Any:
    return OmegaConf.create({"ckpt_path": None, "resume": True, "output_root": str(root), "name": "n", "seed": 3, **more})


def test_the_newest_checkpoint_of_the_name_and_seed(tmp_path: Path) -> None:
    for age, run in enumerate(("new", "old")):
        folder = tmp_path / "n" / "seed3" / run / CHECKPOINTS
        folder.mkdir(parents=True)
        (folder / LAST).write_bytes(b"")
        os.utime(folder / LAST, (1000 - age, 1000 - age))
    assert find_checkpoint(config(tmp_path)) == tmp_path / "n" / "seed3" / "new" / CHECKPOINTS / LAST
    assert find_checkpoint(config(tmp_path, resume=False)) is None


def test_without_a_checkpoint_the_folder_that_was_begun_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="start without resume, or give ckpt_path=<file>"):
        find_checkpoint(config(tmp_path))
    begun = tmp_path / "n" / "seed3" / "2026"
    begun.mkdir(parents=True)
    (begun / "run.lock").touch()
    (tmp_path / "n" / "seed3" / "2027").mkdir()  # of the command that fails: nothing has claimed it
    with pytest.raises(ConfigError, match=rf"start without resume \(hydra.run.dir={begun} takes up the folder"):
        find_checkpoint(config(tmp_path))


def test_a_checkpoint_that_leads_to_no_step_is_refused(tmp_path: Path) -> None:
    """Else the table "after" training would show the last evaluation before it, and the exported policy be another one."""
    checkpoint = tmp_path / CHECKPOINTS / LAST
    evaluated = Saved(checkpoint, 4, None, evaluations=[{"step": 0}, {"step": 4}])
    check_steps_left(evaluated, 5, same_run=True)
    check_steps_left(evaluated, 5, same_run=False)
    check_steps_left(evaluated, 4, same_run=True)  # killed before its export
    with pytest.raises(ConfigError, match=r"at step 4 and trainer\.max_steps=3: a run does not go back"):
        check_steps_left(evaluated, 3, same_run=True)
    with pytest.raises(ConfigError, match=r"at step 4 and trainer\.max_steps=4: nothing is left to do"):
        check_steps_left(evaluated, 4, same_run=False)
    for evaluations in ([], [{"step": 0}, {"step": 2}]):
        with pytest.raises(ConfigError, match="its policy was not evaluated at that step"):
            check_steps_left(Saved(checkpoint, 4, None, evaluations=evaluations), 4, same_run=True)
    mark_finished(tmp_path, 4, 4)
    with pytest.raises(ConfigError, match="nothing is left to do"):
        check_steps_left(evaluated, 4, same_run=True)


def test_a_run_is_complete_no_more_where_it_goes_back(tmp_path: Path) -> None:
    forget_finished(tmp_path, 0)
    mark_finished(tmp_path, 4, 4)
    for step, complete in ((5, True), (4, True), (3, False)):
        forget_finished(tmp_path, step)
        assert is_finished(tmp_path, 4) is complete


def test_a_run_that_ended_early_is_complete_until_it_is_to_make_more_steps(tmp_path: Path) -> None:
    mark_finished(tmp_path, 60, 100)
    assert is_finished(tmp_path, 60)
    assert is_finished(tmp_path, 100)
    assert not is_finished(tmp_path, 101)
    (tmp_path / FINISHED).write_text('{"step": 60}\n')  # of an earlier version
    assert is_finished(tmp_path, 60)
    assert not is_finished(tmp_path, 61)
