"""What the last revision before the move into rooms has written still loads: checkpoint, exported policy, MLflow runs.

`tests/golden/before_rooms` holds the third step of a run of four, its policy, its MLflow store as SQL, and what the
uninterrupted run logged at step 4 (`README.md` there).
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from pathlib import Path

import mlflow
import pytest
import torch
from safetensors.torch import load_file
from support.commands import run

from oar_lightning.policy.pretrained import PretrainedPolicy

OLD = Path(__file__).parents[1] / "golden" / "before_rooms"

SETTINGS = (
    "policy=hf policy.name=policy data.chain.min_steps=1 data.chain.max_steps=1 trainer.max_steps=4 checkpoint_every_n_steps=3 "
    "update.problems=8 update.group_size=8 update.inner_epochs=2 update.token_budget=auto evaluation.problems=8 "
    "evaluation.samples=2 evaluation.every_n_steps=0 rollout.max_new_tokens=40 update.microbatches=4 scorer.token_budget=4096"
)
"""Its own, with what were the defaults then."""


@pytest.fixture
def old_runs(tmp_path: Path) -> Path:
    """A folder with the old policy, the old run's checkpoint and the old MLflow store."""
    shutil.copytree(OLD / "policy", tmp_path / "policy")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    shutil.copy(OLD / "step_3.ckpt", tmp_path / "run" / "checkpoints" / "last.ckpt")
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.executescript(gzip.decompress((OLD / "mlflow.sql.gz").read_bytes()).decode())
    return tmp_path


def test_an_exported_policy_loads() -> None:
    policy = PretrainedPolicy(str(OLD / "policy")).load()
    stored = load_file(OLD / "policy" / "model.safetensors")
    loaded = policy.model.state_dict()
    assert stored
    assert all(torch.equal(loaded[name], weight) for name, weight in stored.items())
    assert policy.tokenizer.decode(policy.tokenizer("Step 1: 3 + 4 = 7").input_ids) == "Step 1: 3 + 4 = 7"


@pytest.mark.slow
def test_a_run_goes_on_from_a_checkpoint_as_it_would_have(old_runs: Path) -> None:
    """In the middle of a batch of rollouts, whose experience is in the checkpoint; into its own MLflow run."""
    done = run(old_runs, "+experiment=oar_g", *SETTINGS.split(), "ckpt_path=run", "name=before")
    assert done.code == 0, done.shown
    client = mlflow.MlflowClient(f"sqlite:///{old_runs}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (old_run,) = client.search_runs(experiments, "tags.mlflow.runName = 'before-seed0'")
    expected = json.loads((OLD / "step_4.json").read_text())
    logged = {key: [m.value for m in client.get_metric_history(old_run.info.run_id, key) if m.step == 4] for key in expected}
    for key, value in expected.items():
        if key.endswith(("_low", "_high")):  # a bootstrap's then, Wilson's now
            continue
        assert logged[key][-1] == pytest.approx(value, rel=1e-3, abs=1e-6), key
        assert len(logged[key]) == 2, "the old run's and the resumed one's"


@pytest.mark.slow
def test_a_report_reads_the_old_runs(old_runs: Path) -> None:
    done = run(old_runs, "task=report", "report.filter=\"tags.task = 'train'\"", "report.name=old", "report.folder=reports")
    assert done.code == 0, done.shown
    (page,) = (old_runs / "reports").glob("*-old/README.md")
    text = page.read_text()
    assert "oar_g" in text
    assert "grpo" in text
