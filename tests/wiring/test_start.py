"""Where a run begins: refused, or a new run with another one's state, where the config is another one."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient
from support.composing import Prepare, composed

from oar_lightning.__main__ import check_config
from oar_lightning.common.config_check import ConfigError
from oar_lightning.sweep.trial import FOLDER_VARIABLE, Ticket, write_ticket
from oar_lightning.wiring.kept_config import Change
from oar_lightning.wiring.resume import Saved, stamp_of
from oar_lightning.wiring.start import Start, check_fork

SMALL = (
    "+experiment=smoke",
    "evaluation.problems=2",
    "evaluation.greedy=false",
    "evaluation.heatmap=false",
    "rollout.max_new_tokens=40",
    "trainer.max_steps=2",
)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_config_is_refused_or_a_new_run_below_the_first(
    prepared: Prepare, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    prepared(*SMALL)()
    first = tmp_path / "outputs" / "smoke" / "seed0" / "run0"
    before = contents(tmp_path)
    more = (*SMALL, "resume=true", "trainer.max_steps=3")
    for overrides, told in (
        (("gate.tau=0.9",), "gate.tau: 0.4 -> 0.9"),
        (("data.chain.filler=1",), "content of data.train: "),
        (("update.microbatches=2", "resume_changed=true"), "update.microbatches: 8 -> 2"),
        (("policy=chain_asides", "resume_changed=true"), "policy.name: chain -> chain_asides"),
    ):
        with pytest.raises(ConfigError, match=told):
            prepared(*more, *overrides)
    assert contents(tmp_path) == before, "nothing is written"

    prepared(*more, "gate.tau=0.9", "optimizer.lr=1e-2", "resume_changed=true")()
    assert contents(first) == {
        name.removeprefix("outputs/smoke/seed0/run0/"): b for name, b in before.items() if "run0/" in name
    }
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    whole = contents(first)
    assert prepared(*SMALL, folder="run0")() is None, "a complete run that Slurm starts again ends without an error"
    assert contents(first) == whole
    card = (first.with_name("run5") / "policy" / "README.md").read_text(encoding="utf-8")
    assert "oar\\_lightning. Until step 2 it was another run, with another gate.tau, optimizer.lr." in card
    command = f"python -m oar_lightning {' '.join(SMALL)}"
    again = f"{command} trainer.max_steps=3 gate.tau=0.9 optimizer.lr=1e-2 ckpt_path=RUN_FOLDER resume_changed=true"
    assert f"```bash\n{command}\n{again}  # from step 2\n```" in card
    client = MlflowClient(store)
    runs = {run.data.tags.get("resumed_from_run", ""): run for run in client.search_runs(["1"])}
    parent, child = runs.pop(""), next(iter(runs.values()))
    assert set(runs) == {parent.info.run_id} == {child.data.tags["mlflow.parentRunId"]}
    assert child.data.tags["resumed_from"] == str(first / "checkpoints" / "last.ckpt")
    assert child.data.tags["resumed_from_step"] == "2"
    assert "gate.tau: 0.4 -> 0.9" in child.data.tags["resumed_changes"]
    assert child.data.params["gate.tau"] == "0.9"
    steps = {
        key: [m.step for m in client.get_metric_history(child.info.run_id, key)] for key in ("reward", "eval/chain/avg_at_2")
    }
    assert steps == {"reward": [3], "eval/chain/avg_at_2": [2, 3]}, "its first evaluation is of the state that it begins with"
    assert client.get_metric_history(child.info.run_id, "learning_rate")[-1].value == pytest.approx(1e-2)
    assert [m.step for m in client.get_metric_history(parent.info.run_id, "reward")] == [1, 2]
    states = [
        torch.load(next(first.parent.glob(f"{run}/checkpoints/last.ckpt")), weights_only=True) for run in ("run0", "run5")
    ]
    counts = [s["optimizer_states"][0]["state"][0]["step"] for s in states]
    assert float(counts[1]) == float(counts[0]) + 1 > 1, "the optimizer's moments went on"


def test_in_the_middle_of_a_batch_it_goes_on_as_it_was_drawn() -> None:
    """Its log-probabilities are at the old temperature, none are of a reference, and the seed divides its rows."""
    odd, even = (Saved(Path("last.ckpt"), step, None) for step in (3, 4))
    for key in ("seed", "rollout.temperature", "loss.kl_coef", "update.dtype", "trainer.precision", "entropy.difficulty"):
        with pytest.raises(ConfigError, match=rf"{key}: 0 -> 1: step 3 is in the middle .* multiple of 2 "):
            check_fork((Change("gate.tau", 0.4, 0.5), Change(key, 0, 1)), odd, 2)
        check_fork((Change(key, 0, 1),), even, 2)
    check_fork((Change("gate.tau", 0.4, 0.5),), odd, 2)


def test_a_new_run_does_not_overwrite_another_one(prepared: Prepare, tmp_path: Path) -> None:
    quiet = (*SMALL, "logger=none")
    prepared(*quiet)()
    run, before = tmp_path / "outputs" / "smoke" / "seed0" / "run0", contents(tmp_path)
    told = r"hydra\.run\.dir=.*run0 holds a run \(checkpoints/last\.ckpt, .*finished\.json\)"
    for overrides in ((), ("optimizer.lr=1e-2",), ("optimizer.lr=1e-2", "resume_changed=true", f"ckpt_path={run}")):
        with pytest.raises(ConfigError, match=told):
            prepared(*quiet, "trainer.max_steps=3", *overrides, folder="run0")
    assert contents(tmp_path) == before


def test_a_trial_of_a_sweep_begins_from_another_run_but_does_not_go_on_in_it(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = (*SMALL, "logger=none")
    prepared(*quiet)()
    folder = tmp_path / "outputs" / "smoke" / "seed0"
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder / "trial"))
    write_ticket(folder / "trial", Ticket("mine", 0, 1, {"gate.tau": 0.4}, str(tmp_path / "optuna.db")))
    before = contents(tmp_path)
    more = (*quiet, "trainer.max_steps=3", f"ckpt_path={folder / 'run0'}", "resume_changed=true")
    with pytest.raises(ConfigError, match=r"^ckpt_path=.*run0: several jobs .* leave this value out of what is varied"):
        prepared(*more, folder="trial")
    assert contents(tmp_path) == before
    prepared(*more, "gate.tau=0.9", folder="trial")
    (folder / "trial" / "checkpoints").mkdir(exist_ok=True)
    shutil.copytree(folder / "run0" / "checkpoints", folder / "trial" / "checkpoints", dirs_exist_ok=True)
    prepared(*more, folder="trial")  # from its own checkpoint


def test_a_checkpoint_outside_of_its_run_is_no_run(prepared: Prepare, tmp_path: Path) -> None:
    quiet = (*SMALL, "logger=none")
    prepared(*quiet)()
    copy = tmp_path / "backup" / "old.ckpt"
    copy.parent.mkdir()
    copy.write_bytes((tmp_path / "outputs" / "smoke" / "seed0" / "run0" / "checkpoints" / "last.ckpt").read_bytes())
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=r"old\.ckpt: a run goes on in its own folder, .*task=export ckpt_path="):
        prepared(*quiet, "trainer.max_steps=3", f"ckpt_path={copy}")
    assert contents(tmp_path) == before


def test_a_checkpoint_that_was_replaced_while_it_was_read_is_not_gone_on_with(tmp_path: Path) -> None:
    """By the process that was stopping: the step read before would make its last one disappear from the histories."""
    checkpoint = tmp_path / "last.ckpt"
    checkpoint.write_text("1")
    start = Start(tmp_path, Saved(checkpoint, 1, None, stamp=stamp_of(checkpoint)))
    start.check_unchanged()
    (tmp_path / "new").write_text("2")
    (tmp_path / "new").replace(checkpoint)
    with pytest.raises(ConfigError, match=r"last\.ckpt was replaced while it was read, .* repeat the command"):
        start.check_unchanged()
    dataclasses.replace(start, changes=(Change("gate.tau", 0.1, 0.2),)).check_unchanged()


def test_a_folder_that_another_run_was_made_in_meanwhile_is_refused(tmp_path: Path) -> None:
    start = Start(tmp_path)
    start.check_unchanged()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_text("another's")
    for new in (start, Start(tmp_path, Saved(tmp_path / "elsewhere.ckpt", 1, None), (Change("gate.tau", 0.1, 0.2),))):
        with pytest.raises(ConfigError, match=r"holds a run .*a new one would overwrite it"):
            new.check_unchanged()


def test_tags_name_the_parent_where_there_is_one() -> None:
    saved = Saved(Path("run/checkpoints/last.ckpt"), 7, None)
    fork = Start(Path("new"), saved, (Change("gate.tau", 0.1, 0.2),))
    assert fork.tags() == {
        "resumed_from": "run/checkpoints/last.ckpt",
        "resumed_from_step": "7",
        "resumed_changes": "gate.tau: 0.1 -> 0.2",
    }
    assert not fork.resumed
    assert Start(Path("run"), saved).resumed
    assert Start(Path("run"), saved).tags() == Start(Path("new")).tags() == {}
    long = Start(Path("new"), saved, tuple(Change(f"k{n}", json.dumps("x" * 100), 1) for n in range(100)))
    assert len(long.tags()["resumed_changes"]) <= 5000, "MLflow's limit"


@pytest.mark.usefixtures("hydra_conf")
@pytest.mark.parametrize("overrides", [["resume_changed=true"], ["resume_changed=true", "resume=true", "task=evaluate"]])
def test_resume_changed_needs_something_to_resume(overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"resume_changed=true says how training is resumed, and nothing is.*add resume=true"):
        check_config(composed(*overrides))
