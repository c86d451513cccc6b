"""Jobs of one multirun: no two export to one folder, and none goes on in a run from which another begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from support.composing import composed

from oar_lightning.__main__ import jobs_check
from oar_lightning.common.config_check import ConfigError
from oar_lightning.wiring.config import plain

pytestmark = pytest.mark.usefixtures("hydra_conf")


def check(shared: Sequence[str], *jobs: str) -> None:
    """Hold jobs, each given by the overrides that it alone has, against each other."""
    one = jobs_check()
    for job in jobs:
        one(composed(*shared, *job.split()))


def kept(run: Path, *overrides: str) -> Path:
    """A run's folder with its config and the file of a checkpoint."""
    for folder in ("artifacts", "checkpoints"):
        (run / folder).mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(plain(composed(*overrides))), run / "artifacts" / "config.yaml")
    (run / "checkpoints" / "last.ckpt").touch()
    return run


def test_a_folder_takes_the_policy_of_one_job(tmp_path: Path) -> None:
    for same in (["export_to=policy"] * 2, ["export_to=policy seed=0", f"export_to={Path.cwd()}/x/../policy seed=1"]):
        with pytest.raises(ConfigError, match=r"^export_to=.*policy is the folder of several jobs .*; leave it out"):
            check([], *same)
    check(["export_to=policies/${seed}"], "seed=0", "seed=1")
    check([], "seed=0", "seed=1", "export_to=policy")


def test_no_job_goes_on_in_a_run_from_which_others_begin(tmp_path: Path) -> None:
    run = kept(tmp_path / "run", "gate.tau=0.4")
    shared = [f"ckpt_path={run}", "resume_changed=true", "trainer.max_steps=320"]
    told = rf"^ckpt_path={run}: several jobs of a multirun begin from this run, .*; leave this value out .* without -m$"
    for taus in ((0.3, 0.4, 0.5), (0.4, 0.3), (0.4, 0.4)):
        with pytest.raises(ConfigError, match=told):
            check(shared, *(f"gate.tau={tau}" for tau in taus))
    check(shared, "gate.tau=0.3", "gate.tau=0.5")
    check(shared, "gate.tau=0.4")
    with pytest.raises(ConfigError, match=told):  # by its file
        check(["resume_changed=true", "gate.tau=0.4"], f"ckpt_path={run}", f"ckpt_path={run}/checkpoints/last.ckpt seed=1")


def test_each_job_may_go_on_in_a_run_of_its_own(tmp_path: Path) -> None:
    runs = [kept(tmp_path / "outputs" / "mine" / f"seed{seed}" / "then", f"seed={seed}") for seed in (0, 1)]
    check(["trainer.max_steps=320"], *(f"seed={seed} ckpt_path={run}" for seed, run in enumerate(runs)))
    newest = ["trainer.max_steps=320", "resume=true", "name=mine", f"output_root={tmp_path}/outputs"]
    check(newest, "seed=0", "seed=1")
    with pytest.raises(ConfigError, match=r"seed1/then: several jobs"):
        check([*newest, "resume_changed=true"], "seed=0", "seed=1 gate.tau=0.3", "seed=1")


def test_other_tasks_read_one_checkpoint(tmp_path: Path) -> None:
    run = kept(tmp_path / "run")
    check([f"ckpt_path={run}", "task=export"], "export_to=a", "export_to=b")
