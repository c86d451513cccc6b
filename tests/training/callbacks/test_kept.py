"""The last and the best checkpoints stay: exact copies of what was saved, also over a resume and a kill in between."""

from __future__ import annotations

from pathlib import Path

import lightning as L
import pytest
import torch
from support.fixtures import fit, make_module, tiny_policy

from oar_lightning.common.config_check import ConfigError
from oar_lightning.training.callbacks import LastCheckpoint, RunIdentity
from oar_lightning.training.callbacks.kept import KeepConfig, KeptCheckpoints, check_monitor
from oar_lightning.wiring.resume import read_saved

SCORES = {1: 0.5, 2: 0.9, 4: 0.9, 5: 0.2, 6: 0.7}
"""Step -> score; there is no evaluation at step 3."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.ckpt"))


def keep_all(folder: Path, config: KeepConfig, steps: range = range(1, 7)) -> KeptCheckpoints:
    """Save and keep a file for each step, which holds the step."""
    folder.mkdir(exist_ok=True)
    kept = KeptCheckpoints(folder, config)
    for step in steps:
        (folder / "new").write_text(str(step))
        (folder / "new").replace(folder / "last.ckpt")
        kept.add(folder / "last.ckpt", step, SCORES.get(step))
    return kept


@pytest.mark.parametrize(
    ("config", "steps", "best"),
    [
        (KeepConfig(), [], None),
        (KeepConfig(last=2), [5, 6], None),
        (KeepConfig(best=1), [2], 2),  # of equals the earlier
        (KeepConfig(best=3), [2, 4, 6], 2),
        (KeepConfig(best=2, mode="min"), [1, 5], 5),
        (KeepConfig(last=1, best=1), [2, 6], 2),
        (KeepConfig(last=99, best=99), [1, 2, 3, 4, 5, 6], 2),
    ],
)
def test_the_last_and_the_best_stay(tmp_path: Path, config: KeepConfig, steps: list[int], best: int | None) -> None:
    keep_all(tmp_path, config)
    assert names(tmp_path) == [*(["best.ckpt"] if best else []), *(f"kept_step_{step:06d}.ckpt" for step in steps), "last.ckpt"]
    assert [(tmp_path / f"kept_step_{step:06d}.ckpt").read_text() for step in steps] == [str(step) for step in steps]
    assert best is None or (tmp_path / "best.ckpt").read_text() == str(best)


def test_a_run_that_goes_on_from_an_earlier_step_forgets_later_ones(tmp_path: Path) -> None:
    kept = keep_all(tmp_path, KeepConfig(last=1, best=2))
    assert kept.scores() == {2: 0.9, 4: 0.9, 6: 0.7}
    before = names(tmp_path)
    KeptCheckpoints(tmp_path, KeepConfig()).go_on_from(0, SCORES.get)
    assert names(tmp_path) == before, "resumed without these settings: nothing is lost"
    (tmp_path / "kept_step_000005.ckpt").write_text("linked, then killed before it was written down")
    kept.go_on_from(3, SCORES.get)
    assert names(tmp_path) == ["best.ckpt", "kept_step_000002.ckpt", "last.ckpt"]
    kept.go_on_from(1, SCORES.get)
    assert names(tmp_path) == ["last.ckpt"]


def test_a_metric_is_idle_where_no_best_checkpoints_are_kept() -> None:
    assert not KeepConfig(last=3).idle
    assert not KeepConfig(best=1, monitor="eval/test/pass@1", mode="min").idle
    why = "checkpoints.best=0"
    assert KeepConfig(monitor="eval/test/pass@1", mode="min").idle == {"monitor=eval/test/pass@1": why, "mode=min": why}


def test_a_run_that_goes_on_with_another_metric_ranks_all_by_it(tmp_path: Path) -> None:
    keep_all(tmp_path, KeepConfig(best=2), range(1, 5))
    other = {2: 0.1, 4: 0.3, 5: 0.2, 6: 0.05}
    kept = KeptCheckpoints(tmp_path, KeepConfig(best=2))
    kept.go_on_from(4, other.get)
    assert (tmp_path / "best.ckpt").read_text() == "4"
    for step in (5, 6):
        (tmp_path / "last.ckpt").unlink()
        (tmp_path / "last.ckpt").write_text(str(step))
        kept.add(tmp_path / "last.ckpt", step, other[step])
    assert kept.scores() == {4: 0.3, 5: 0.2}


def test_folders_are_kept_as_links_to_them(tmp_path: Path) -> None:
    """DeepSpeed's checkpoints: the callback clears folders that nothing leads to."""
    callback = LastCheckpoint(tmp_path, 1, KeepConfig(best=1), SCORES.get)
    for step in range(1, 5):
        (tmp_path / f".last.{step}").mkdir()
        callback._put_folder_in_place(tmp_path / f".last.{step}", step)
        callback.kept.add(tmp_path / "last.ckpt", step, SCORES.get(step))
    for name in (".kept_step_000001.ckpt.123", ".best.ckpt.123"):  # of a process that was killed between two renames
        (tmp_path / name).symlink_to("last.ckpt")
    callback._clear()
    assert not list(tmp_path.glob(".*"))
    assert sorted(p.name[:11] for p in tmp_path.glob("step_*")) == ["step_000002", "step_000003", "step_000004"]
    assert (tmp_path / "best.ckpt").resolve().name.startswith("step_000002")


def test_kept_checkpoints_of_a_run_are_its_states(tmp_path: Path) -> None:
    states: dict[int, dict[str, torch.Tensor]] = {}

    class Look(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: object) -> None:
            states[trainer.global_step] = {name: value.clone() for name, value in module.state_dict().items()}

    def callbacks() -> list[L.Callback]:
        keep = LastCheckpoint(tmp_path, 0, KeepConfig(best=2, last=1), SCORES.get)
        return [Look(), RunIdentity(lambda: "run"), keep]

    fit(make_module(tiny_policy()), 2, callbacks())
    fit(make_module(tiny_policy(1)), 4, callbacks(), ckpt_path=str(tmp_path / "last.ckpt"))
    assert [path.name for path in KeptCheckpoints(tmp_path, KeepConfig()).links()] == [
        "kept_step_000002.ckpt",
        "kept_step_000004.ckpt",
    ]
    for step in (2, 4):
        saved = torch.load(tmp_path / f"kept_step_{step:06d}.ckpt", weights_only=True)["state_dict"]
        assert saved.keys() == states[step].keys()
        assert all(torch.equal(value, states[step][name]) for name, value in saved.items())
    assert read_saved(tmp_path / "best.ckpt").step == 2


@pytest.mark.parametrize("former", [KeepConfig(), KeepConfig(best=1)])
def test_the_state_at_which_a_run_goes_on_is_kept(former: KeepConfig, tmp_path: Path) -> None:
    """Also where the former process kept none, or was killed between saving it and keeping it."""
    fit(make_module(tiny_policy()), 2, [RunIdentity(lambda: "run"), LastCheckpoint(tmp_path, 1, former, SCORES.get)])
    (tmp_path / "kept_step_000002.ckpt").unlink(missing_ok=True)
    (tmp_path / "kept.json").unlink(missing_ok=True)
    for steps in (5, 6):
        keep = LastCheckpoint(tmp_path, 1, KeepConfig(best=1), SCORES.get)
        fit(make_module(tiny_policy(1)), steps, [RunIdentity(lambda: "run"), keep], ckpt_path=str(tmp_path / "last.ckpt"))
        assert read_saved(tmp_path / "best.ckpt").step == 2
        assert not list(tmp_path.glob(".*")), "unfinished links"


@pytest.mark.parametrize(
    ("values", "told"), [({"last": -1}, "last .* got -1"), ({"best": -1}, "best"), ({"mode": "up"}, "mode")]
)
def test_settings_that_cannot_be_are_refused(values: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=rf"checkpoints\.{told}"):
        KeepConfig(**values)  # type: ignore[arg-type]


def test_an_unknown_metric_is_refused_with_the_known_ones() -> None:
    known = ["eval/chain/avg_at_4", "eval/chain/greedy"]
    assert check_monitor("checkpoints.monitor", None, known) == known[0]
    assert check_monitor("checkpoints.monitor", known[1], known) == known[1]
    with pytest.raises(
        ConfigError, match=r"checkpoints\.monitor=greedy is no metric .* eval/chain/avg_at_4, eval/chain/greedy"
    ):
        check_monitor("checkpoints.monitor", "greedy", known)
