"""What reaches Lightning's Trainer: callbacks and loggers from the config; what would be dropped is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightning.pytorch.callbacks import DeviceStatsMonitor, Timer
from support.composing import Prepare, composed, settings

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.paths import conf_dir
from oar_lightning.wiring.lightning_options import development_run, own_callbacks, trainer_options
from oar_lightning.wiring.run import build_others

pytestmark = pytest.mark.usefixtures("hydra_conf")

PLUG_IN = """
import lightning as L

class Notes(L.Callback):
    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_batch_end(self, trainer, module, *rest) -> None:
        with open(self.path, "a") as file:
            print(trainer.global_step, len(trainer.loggers), sorted(trainer.callback_metrics)[:1], file=file)
"""


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("+trainer.logger=true", r"trainer\.logger=True is not read: .* logger=\[mlflow,csv\]"),
        ("+trainer.accumulate_grad_batches=2", "use update.microbatches instead"),
        ("+trainer.max_epochs=3", "trainer.max_epochs=3 .* trainer.max_steps"),
        ("+trainer.overfit_batches=1", r"\+debug=overfit"),
        ("+trainer.limit_train_batches=1", "fast_dev_run"),
        (
            "trainer.fast_dev_run=yes",
            "trainer.fast_dev_run must be (an integer or true or false|true or false or an integer >= 0), got 'yes'",
        ),
        ("trainer.fast_dev_run=-1", "got -1"),
        ("+trainer.loger=true", r"did you mean trainer\.logger"),
        ("+data.first_problems=0", "data.first_problems must be >= 1"),
    ],
)
def test_options_that_would_be_dropped_are_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        settings(override)


def test_callbacks_are_named_or_listed() -> None:
    listed = "+trainer.callbacks=[{_target_: lightning.pytorch.callbacks.Timer}]"
    found = own_callbacks(composed("callbacks=[device_stats,early_stopping]", "callbacks.early_stopping=null", listed))
    assert [type(callback) for callback in found] == [DeviceStatsMonitor, Timer]
    with pytest.raises(
        ConfigError, match=r"callbacks\.device_stats has nothing to write to without a logger; choose logger=csv"
    ):
        own_callbacks(composed("callbacks=[device_stats]"), logged=False)
    plain = composed("callbacks=[]", "+trainer.callbacks=[]")
    assert own_callbacks(plain) == []
    assert set(trainer_options(plain.trainer)) == set(plain.trainer) - {"fast_dev_run", "callbacks"}
    with pytest.raises(ConfigError, match=r"callbacks\.mine makes a dict, which is no callback of Lightning"):
        own_callbacks(composed("+callbacks.mine._target_=builtins.dict"))


def test_every_file_of_the_groups_composes() -> None:
    for name in ("overfit", "step", "profile"):
        assert settings(f"+debug={name}", "scorer=oar_g")
    assert {path.stem for path in (conf_dir() / "debug").glob("*.yaml")} == {"overfit", "step", "profile"}
    assert {path.stem for path in (conf_dir() / "callbacks").glob("*.yaml")} == {"none", "device_stats", "early_stopping"}


def test_loggers_beside_mlflow_keep_its_keys(tmp_path: Path) -> None:
    both = composed("logger=[mlflow,csv]", "logger.experiment_name=mine")
    assert (both.logger.experiment_name, list(both.loggers)) == ("mine", ["csv"])
    alone = composed("logger=csv")
    assert alone.logger is None
    assert [type(logger).__name__ for logger in build_others(alone, tmp_path)] == ["CSVLogger"]
    assert composed("logger=none").loggers == {}
    (own,) = build_others(composed("+loggers.mine={_target_: lightning.pytorch.loggers.CSVLogger, save_dir: x}"), tmp_path)
    assert own.save_dir == "x", "one that is no _partial_ is taken as it is"
    with pytest.raises(ConfigError, match=r"loggers\.mine makes a dict, which is no logger"):
        build_others(composed("+loggers.mine._target_=builtins.dict"), tmp_path)


def test_a_development_run_is_short_and_resumes_nothing() -> None:
    short = development_run(composed("trainer.fast_dev_run=2", "checkpoints.best=3"))
    assert (short.trainer.max_steps, short.logger, short.evaluation.problems, short.checkpoints.best) == (2, None, 2, 0)
    assert short.evaluation.every_n_steps == 1, "else callbacks=early_stopping would have nothing to compare"
    assert development_run(composed("trainer.fast_dev_run=2", "evaluation.every_n_steps=0")).evaluation.every_n_steps == 0
    whole = composed()
    assert development_run(whole) is whole
    with pytest.raises(ConfigError, match="leave out resume and ckpt_path"):
        development_run(composed("trainer.fast_dev_run=true", "resume=true"))


def test_a_development_run_goes_through_with_a_callback_and_keeps_nothing(
    prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_notes.py").write_text(PLUG_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    notes = tmp_path / "notes"
    before = (tmp_path / "mlflow.db").read_bytes()
    own = ("+callbacks.notes._target_=my_notes.Notes", f"+callbacks.notes.path={notes}", "logger=[mlflow,csv]")
    prepared("+experiment=smoke", "trainer.fast_dev_run=true", "rollout.max_new_tokens=40", *own)()
    assert notes.read_text().splitlines()[-1] == "1 0 ['accuracy']", "a callback has the step's metrics"
    assert "policy: not kept, nor a checkpoint" in capsys.readouterr().out
    assert (tmp_path / "mlflow.db").read_bytes() == before
    (run_dir,) = (tmp_path / "outputs" / "smoke" / "seed0").iterdir()
    assert {path.name for path in run_dir.iterdir()} == {"artifacts", "run.lock"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["overfit", "step", "profile"])
def test_debug_runs(name: str, prepared: Prepare, tmp_path: Path) -> None:
    short = ("trainer.max_steps=8", "update.group_size=4") if name == "overfit" else ("update.problems=8",)
    prepared("+experiment=oar_g", "logger=none", f"+debug={name}", *short)()
    (run_dir,) = (tmp_path / "outputs" / name / "seed0").iterdir()
    report = run_dir / "fit-profile.txt"
    assert report.exists() == (name == "profile")
    assert name != "profile" or "PolicyOptimization.on_train_batch_start" in report.read_text()


def test_a_callback_may_end_training(prepared: Prepare, tmp_path: Path) -> None:
    """Best checkpoints and early stopping in a whole run, with metrics in a CSV file."""
    keys = ("callbacks=early_stopping", "callbacks.early_stopping.patience=1", "callbacks.early_stopping.min_delta=1.0")
    more = ("evaluation.every_n_steps=1", "evaluation.problems=2", "evaluation.heatmap=false", "rollout.max_new_tokens=40")
    prepared("+experiment=smoke", "logger=csv", "checkpoints.best=1", *keys, *more)()
    (run_dir,) = (tmp_path / "outputs" / "smoke" / "seed0").iterdir()
    assert (run_dir / "checkpoints" / "best.ckpt").exists()
    assert (run_dir / "policy").is_dir(), "what was learnt until then is exported"
    names, *lines = (run_dir / "csv" / "version_0" / "metrics.csv").read_text().splitlines()
    steps = [int(line.split(",")[names.split(",").index("step")]) for line in lines]
    assert max(steps) == 2 < 4
    assert {"reward", "eval/chain/avg_at_2", "objective"} <= set(names.split(","))
