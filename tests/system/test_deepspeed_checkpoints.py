"""DeepSpeed's checkpoints: they continue a run exactly, survive a kill, run no code, and export whole weights."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from support.checkpoint_worker import EVERY, STEPS
from support.fixtures import tiny_policy
from support.rank_jobs import run_on_two, start
from support.rank_worker import lora_policy
from transformers import AutoModelForCausalLM

from oar_lightning.common.config_check import ConfigError
from oar_lightning.distributed.deepspeed_checkpoint import FORCE, Layout, loading_data_only
from oar_lightning.tasks.export import export
from oar_lightning.wiring.resume import check_layout, find_checkpoint, read_saved
from oar_lightning.wiring.trained_weights import put_weights, read_weights

pytest.importorskip("deepspeed", reason="the extra deepspeed is not installed", exc_type=ImportError)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORKER = "checkpoint_worker.py"


@dataclass(frozen=True)
class Job:
    """An uninterrupted run of two ranks with its checkpoints in `folder`, and one that was resumed from its step 3."""

    trainer: str
    folder: Path
    whole: dict[str, Any]
    resumed: dict[str, Any]


@pytest.fixture(scope="module", params=["deepspeed_zero2", "deepspeed_zero3"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp(request.param)
    found = run_on_two(folder, WORKER, request.param, "resume")[0]
    return Job(request.param, folder / "whole", **found)


@pytest.fixture
def folder(job: Job, tmp_path: Path) -> Path:
    """A copy of the job's checkpoints."""
    return Path(shutil.copytree(job.folder, tmp_path / "checkpoints", symlinks=True))


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(one[key].equal(other[key]) for key in one)


def test_a_resumed_run_is_the_uninterrupted_one(job: Job) -> None:
    assert list(job.resumed["rows"]) == list(range(EVERY + 1, STEPS + 1))
    for step, row in job.resumed["rows"].items():
        whole = job.whole["rows"][step]
        for key in ("loss", "grad_norm", "entropy", "reward", "learning_rate"):
            assert row.get(key) == whole.get(key), (step, key)
    assert same(job.resumed["weights"], job.whole["weights"])


def test_last_and_previous_are_whole_and_nothing_else_is_left(job: Job) -> None:
    last, previous = (read_saved(job.folder / name, None) for name in ("last.ckpt", "previous.ckpt"))
    assert (last.step, previous.step, last.run_id) == (STEPS, EVERY, "run")
    assert last.layout == Layout(zero_stage=int(job.trainer[-1]), ranks=2)
    names = {path.name for path in job.folder.iterdir()} - {"policy"}
    assert names == {"last.ckpt", "previous.ckpt", *((job.folder / n).readlink().name for n in ("last.ckpt", "previous.ckpt"))}
    assert not list(job.folder.rglob("*.py")), "no scripts in a checkpoint"


@pytest.mark.parametrize("stage", [2, 3])
def test_checkpoints_of_lora_are_resumed_and_exported(stage: int, tmp_path: Path) -> None:
    """In stage 2 they hold what is trained and little else."""
    found = run_on_two(tmp_path, WORKER, f"deepspeed_zero{stage}", "lora")[0]
    assert same(found["resumed"]["weights"], found["whole"]["weights"])
    saved = read_saved(tmp_path / "whole" / "last.ckpt", None)
    stored = read_weights(saved)
    assert any("lora_" in name for name in stored)
    assert all("lora_" in name for name in stored) == (stage == 2)
    with loading_data_only():
        names = {name for path in parts(tmp_path / "whole") for name in torch.load(path).get("module", {})}
    others = {name for name in names if "lora_" not in name}
    # of the two names of a tied weight DeepSpeed leaves out one
    assert (others == {"model.base_model.model.lm_head.weight"}) == (stage == 2)
    policy = lora_policy()
    put_weights(policy, saved)
    for name, weight in policy.model.named_parameters():
        assert weight.equal(found["whole"]["weights"][name]), name


@pytest.mark.parametrize("scorer", ["prime", "istar"])
def test_a_model_that_the_scorer_trains_is_resumed_bit_for_bit(scorer: str, tmp_path: Path) -> None:
    found = run_on_two(tmp_path, WORKER, "deepspeed_zero2", "own", scorer)[0]
    for what in ("weights", "own"):
        assert found["whole"][what]
        assert same(found["resumed"][what], found["whole"][what])
    start = dict(tiny_policy().model.named_parameters())
    assert all(not weight.equal(start[name]) for name, weight in found["whole"]["own"].items()), "it has learnt"


def test_a_model_that_the_scorer_trains_is_refused_by_stage_3(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the scorer trains a copy of the policy's weights, which ZeRO-3 has sharded"):
        run_on_two(tmp_path, WORKER, "deepspeed_zero3", "own", "prime")


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "last.ckpt").rglob("*.pt"))


def test_a_folder_without_its_summary_is_a_damaged_one(folder: Path) -> None:
    (folder / "last.ckpt" / "summary.json").unlink()
    asked = OmegaConf.create({"ckpt_path": str(folder / "last.ckpt")})
    with pytest.raises(ConfigError, match=r"not a readable checkpoint.*summary\.json.*ckpt_fallback=true goes on from"):
        read_saved(find_checkpoint(asked) or folder, None)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    """One bit of the largest record is another."""
    with zipfile.ZipFile(path) as archive:
        record = max(archive.infolist(), key=lambda info: info.file_size)
    data = bytearray(path.read_bytes())
    data[record.header_offset + record.file_size // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [truncated, flipped, Path.unlink])
def test_a_damaged_part_is_found_and_the_checkpoint_before_it_taken(damage: Any, folder: Path) -> None:
    for path in parts(folder):
        kept = path.read_bytes()
        damage(path)
        with pytest.raises(ConfigError, match=r"last\.ckpt: not a readable checkpoint.*ckpt_fallback=true goes on from"):
            read_saved(folder / "last.ckpt", None)
        assert read_saved(folder / "last.ckpt", None, fallback=True).step == EVERY
        path.write_bytes(kept)
    assert read_saved(folder / "last.ckpt", None).step == STEPS


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.marker), "w")


def poison(folder: Path, path: Path, marker: Path) -> None:
    """Put code into a part of the last checkpoint, with a summary that fits."""
    with loading_data_only():
        state = torch.load(path)
    torch.save(state | {"evil": Evil(marker)}, path)
    summary = folder / "last.ckpt" / "summary.json"
    content = json.loads(summary.read_text())
    content["files"][str(path.relative_to((folder / "last.ckpt").resolve()))] = path.stat().st_size
    summary.write_text(json.dumps(content))


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "executed"


def test_code_in_any_part_is_refused_and_not_run(folder: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    monkeypatch.setenv(FORCE, "0")
    for path in [part.resolve() for part in parts(folder)]:
        kept = path.read_bytes()
        summary = (folder / "last.ckpt" / "summary.json").read_bytes()
        poison(folder, path, marker)
        TorchCheckpointEngine().load(str(path))
        assert marker.exists(), "DeepSpeed by itself runs it"
        marker.unlink()
        with pytest.raises(ConfigError, match=rf"{path.name}: it names \S*open, which is not data, and nothing of it was run"):
            read_saved(folder / "last.ckpt", None)
        with loading_data_only(), pytest.raises(Exception, match="Weights only load failed"):
            TorchCheckpointEngine().load(str(path))
        with pytest.raises(Exception, match="Weights only load failed"):
            read_weights(saved_unchecked(folder))
        assert not marker.exists()
        path.write_bytes(kept)
        (folder / "last.ckpt" / "summary.json").write_bytes(summary)


def saved_unchecked(folder: Path) -> Any:
    """As if the part had been exchanged after the check."""
    from oar_lightning.wiring.resume import Saved

    return Saved(folder / "last.ckpt", STEPS, None, Layout(2, 2))


def test_a_run_does_not_load_what_was_exchanged_after_the_check(job: Job, folder: Path, marker: Path, tmp_path: Path) -> None:
    for path in parts(folder):
        poison(folder, path.resolve(), marker)
    for found in run_on_two(tmp_path, WORKER, job.trainer, "load", str(folder / "last.ckpt")):
        assert "Weights only load failed" in found["error"]
    assert not marker.exists()


def test_the_policy_at_the_end_of_training_is_whole(job: Job) -> None:
    exported = AutoModelForCausalLM.from_pretrained(job.folder / "policy").state_dict()
    trained = job.whole["weights"]
    assert trained
    for name, weight in trained.items():
        assert exported[name].equal(weight), name
    untrained = dict(tiny_policy().model.named_parameters())
    assert all((weight != untrained[name]).any() for name, weight in trained.items())


def test_the_policy_of_a_checkpoint_is_exported_tied_weights_once(job: Job, tmp_path: Path) -> None:
    policy, saved = tiny_policy(seed=1), read_saved(job.folder / "last.ckpt", None)
    put_weights(policy, saved)
    export(policy, saved, tmp_path / "policy")
    from_checkpoint, from_training = (tmp_path / "policy", job.folder / "policy")
    one, two = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (from_checkpoint, from_training))
    assert same(one, two)
    sizes = {(path / "model.safetensors").stat().st_size for path in (from_checkpoint, from_training)}
    assert len(sizes) == 1, "and no copy of the tied head"


@pytest.mark.parametrize("place", ["writing", "linking"])
def test_a_kill_leaves_a_checkpoint_that_goes_on(place: str, job: Job, tmp_path: Path) -> None:
    with ended(start(tmp_path, WORKER, job.trainer, place)) as codes:
        assert -9 in codes, [log.read_text()[-2000:] for log in tmp_path.glob("*.log")]
    killed = tmp_path / "killed"
    assert read_saved(killed / "last.ckpt", None).step == EVERY
    assert len(list(killed.glob("step_*"))) + len(list(killed.glob(".last.ckpt.*"))) == 2, "what was being written is there"
    found = run_on_two(tmp_path, WORKER, job.trainer, "go_on")[0]["resumed"]
    assert same(found["weights"], job.whole["weights"])
    assert len(list(killed.glob("step_*"))) == 2
    assert not list(killed.glob(".*"))


class ended:
    """Wait for the ranks of a job that does not end well, and see that they do end; gives their exit codes."""

    def __init__(self, processes: list[Any]) -> None:
        self.processes = processes

    def __enter__(self) -> list[int]:
        return [process.wait(300) for process in self.processes]

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()


@pytest.mark.parametrize("trainer", ["deepspeed_zero2", "deepspeed_zero3"])
def test_a_step_with_a_gradient_that_is_no_number_is_left_out_and_counted(trainer: str, tmp_path: Path) -> None:
    for found in run_on_two(tmp_path, WORKER, trainer, "nan"):
        first, second, third, _ = found["left_out"]["weights"]
        assert same(first, second)
        assert not same(second, third)
        assert all(bool(weight.isfinite().all()) for weight in third.values())
        assert found["left_out"]["skipped"] == 1
        assert "not finite at step 2, and more than divergence.max_skipped_steps=0" in found["too_many"]["error"]


def test_other_ranks_stages_and_strategies_are_refused(job: Job) -> None:
    saved = read_saved(job.folder / "last.ckpt", None)
    stage = int(job.trainer[-1])
    check_layout(saved, Layout(stage, 2))
    expected = rf"ZeRO stage {stage} on 2 ranks, and this run .*set trainer=deepspeed_zero{stage} and trainer.devices .* to 2"
    for other in (Layout(stage, 4), Layout(1, 2), None):
        with pytest.raises(ConfigError, match=expected + ".*task=export"):
            check_layout(saved, other)


@pytest.fixture(autouse=True)
def _no_traces() -> Iterator[None]:
    import os

    yield
    assert os.environ.get(FORCE, "0") == "0", "loading outside is as it was"
