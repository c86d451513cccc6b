"""The main job as a user runs it: one process, real policy, real MLflow store."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient
from support.commands import Done, run, run_from_scratch, started
from transformers import AutoModelForCausalLM, AutoTokenizer

OURS = "ess_ratio top10_mass gini floor_frac boost_frac weight_max mass_error no_span_frac corr_entropy corr_position"
EXPECTED = [
    *[
        "reward",
        "reward_std",
        "frac_reward_zero_std",
        "entropy",
        "loss",
        "grad_norm",
        "learning_rate",
        "num_tokens",
    ],
    *(f"clip_ratio/{k}" for k in ("low_mean", "high_mean", "region_mean")),
    *(f"completions/{k}" for k in ("mean_length", "min_length", "max_length", "clipped_ratio")),
    *(f"credit/{k}" for k in [*OURS.split(), "rank_stability", "forward_equivalents"]),
    *(f"time/{k}_s" for k in ("generate", "reward", "score", "logprobs", "update", "step", "total")),
    *(f"eval/chain/{k}" for k in ("avg_at_2", "pass_at_2", "maj_at_2", "greedy", "answered", "truncated")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("job")


def client(folder: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{folder}/mlflow.db")


@pytest.fixture(scope="module")
def finished(folder: Path) -> Done:
    """From a true start, as all that follows it is not."""
    return run_from_scratch(folder, "+experiment=smoke")


def mlflow_run(folder: Path):
    store = client(folder)
    experiment = store.get_experiment_by_name("oar_lightning")
    return store.search_runs([experiment.experiment_id])[0]


def test_smoke_ends_with_the_table_and_the_ui_command(finished: Done) -> None:
    assert finished.code == 0, finished.shown
    assert "before and after" in finished.stdout
    assert "mlflow ui --backend-store-uri sqlite:///" in finished.stdout
    assert "Traceback" not in finished.shown
    logged = [line for line in finished.shown.splitlines() if re.match(r"\[?20\d\d", line)]
    assert logged
    assert [line for line in logged if "][oar_lightning." not in line] == [], "notices of libraries"
    assert "step 4/4 · reward" in finished.stdout


def test_mlflow_has_parameters_tags_and_every_metric(folder: Path, finished: Done) -> None:
    found = mlflow_run(folder)
    assert found.info.status == "FINISHED"
    assert found.data.params["gate.tau"] == "0.4"
    assert found.data.params["scorer.noise_std"] == "0.001"
    assert not [k for k in found.data.params if k.startswith("logger.")], "where a run is logged is nothing to compare it by"
    assert found.info.run_name == "smoke · seed 0"
    tags = found.data.tags
    assert "` python -m oar_lightning +experiment=smoke `" in tags["mlflow.note.content"]
    inputs = {dataset.tags[0].value: dataset.dataset for dataset in found.inputs.dataset_inputs}
    assert {part: (d.name, json.loads(d.profile)["num_rows"]) for part, d in inputs.items()} == {
        "train": ("chain", "endless"),
        "evaluation": ("chain", 8),
    }
    assert (tags["experiment"], tags["scorer"], tags["seed"], tags["data"]) == ("smoke", "oar_g", "0", "chain")
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", tags["git_revision"])
    missing = [name for name in EXPECTED if name not in found.data.metrics]
    assert not missing
    history = client(folder).get_metric_history(found.info.run_id, "reward")
    assert [m.step for m in history] == [1, 2, 3, 4]
    assert found.data.metrics["credit/mass_error"] < 1e-6


def test_artifacts_are_a_table_a_heatmap_and_the_config(folder: Path, finished: Done) -> None:
    run_id = mlflow_run(folder).info.run_id
    store = client(folder)
    assert [a.path for a in store.list_artifacts(run_id, "heatmaps")] == [
        "heatmaps/chain_step_000000.html",
        "heatmaps/chain_step_000004.html",
    ]
    table = json.loads(Path(store.download_artifacts(run_id, "completions/chain_step_000004.json")).read_text())
    columns = ["prompt", "completion", "answer", "gold", "reward", "advantage", "sample", "correct", "level", "note"]
    assert table["columns"] == columns
    assert [r[6] for r in table["data"]] == [0, 1, "greedy"] * 8
    assert {r[4] for r in table["data"]} <= {0.0, 1.0}
    assert all((r[2] == r[3]) == (r[4] == 1.0) == (r[7] == 1) for r in table["data"])
    assert "tau: 0.4" in Path(store.download_artifacts(run_id, "config.yaml")).read_text()


def test_exported_policy_loads_with_transformers(folder: Path, finished: Done) -> None:
    exported = Path(mlflow_run(folder).data.tags["final_model"])
    tokenizer, model = AutoTokenizer.from_pretrained(exported), AutoModelForCausalLM.from_pretrained(exported)
    trained = torch.load(exported.parent / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, trained[f"model.{name}"]), name
    prompt = tokenizer("Ann has 9 apples. Ann drops 6. Ann wins 6. How many apples are left?\n", return_tensors="pt")
    out = model.generate(**prompt, max_new_tokens=40, do_sample=False)
    assert re.search(r"\\boxed\{\d+\}", tokenizer.decode(out[0]))


def test_resume_continues_the_same_run_with_more_steps(folder: Path, finished: Done) -> None:
    done = run(folder, "+experiment=smoke", "resume=true")
    assert done.code == 1
    assert "raise trainer.max_steps" in done.shown
    more = run(folder, "+experiment=smoke", "resume=true", "trainer.max_steps=6")
    assert more.code == 0, more.shown
    found = mlflow_run(folder)
    assert [m.step for m in client(folder).get_metric_history(found.info.run_id, "reward")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_a_resumed_run_exports_the_policy_of_an_uninterrupted_one(folder: Path, finished: Done) -> None:
    for arguments in (("resume=true", "trainer.max_steps=8"), ("name=whole", "trainer.max_steps=8", "logger=none")):
        done = run(folder, "+experiment=smoke", *arguments)
        assert done.code == 0, done.shown
    exported = [next((folder / "outputs" / name / "seed0").glob("*/policy/model.safetensors")) for name in ("smoke", "whole")]
    assert exported[0].read_bytes() == exported[1].read_bytes()


def test_ctrl_c_leaves_a_checkpoint_and_exit_code_130(folder: Path, finished: Done) -> None:
    with started(folder, "+experiment=smoke", "name=stopped", "trainer.max_steps=500", "checkpoint_every_n_steps=1") as command:
        command.wait_for("step 1/500")
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 130, command.shown
        assert "ckpt_path=" in command.shown
    (checkpoint,) = (folder / "outputs" / "stopped").glob("seed0/*/checkpoints/last.ckpt")
    assert torch.load(checkpoint, weights_only=True)["global_step"] >= 2
    stopped = mlflow_run(folder)
    assert stopped.info.status == "KILLED"
    assert stopped.data.metrics["time/total_cpu_s"] > 0, "what a run has cost is told however it ends"
    assert sorted(p.name for p in checkpoint.parent.iterdir()) == ["last.ckpt", "previous.ckpt"]
