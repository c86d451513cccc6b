"""DeepSpeed's checkpoints: folders in which each rank has written its parts, read without running any code from them."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from oar_lightning.common.outputs import flush
from oar_lightning.common.scopes import environment

SUMMARY = "summary.json"
TAG = "checkpoint"
"""The name that Lightning gives to DeepSpeed's part of a folder."""

FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"

STORED_CLASSES = (
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
)
"""What DeepSpeed pickles beside tensors and plain values: all of them hold plain values only."""


@dataclass(frozen=True)
class Layout:
    """How a DeepSpeed checkpoint is divided: the ZeRO stage and the number of ranks, which have to stay the same."""

    zero_stage: int
    ranks: int


@dataclass(frozen=True)
class FolderSummary:
    """What a checkpoint folder says about itself without DeepSpeed. `files` holds the size of every other file in bytes."""

    global_step: int
    mlflow_run_id: str | None
    layout: Layout
    files: dict[str, int]


def import_deepspeed(needed_by: str) -> ModuleType:
    """Import DeepSpeed. On a machine without a GPU it is told so first, since it looks only once.

    Raises:
        ImportError: with the remedy, where it is not installed.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read when deepspeed is imported
    try:
        return importlib.import_module("deepspeed")
    except ImportError as error:
        raise ImportError(f"{needed_by} needs the optional extra: pip install -e '.[deepspeed]'") from error


@contextlib.contextmanager
def loading_data_only() -> Iterator[None]:
    """A block in which `torch.load` makes tensors, plain values and `STORED_CLASSES` only, whatever its caller asks for.

    DeepSpeed's own calls would run any code that a file names.
    """
    import_deepspeed("a DeepSpeed checkpoint")
    places = [path.rsplit(".", 1) for path in STORED_CLASSES]
    classes = [getattr(importlib.import_module(module), name) for module, name in places]
    with environment({FORCE: "1"}), torch.serialization.safe_globals(classes):
        yield


def complete_folder(folder: Path, global_step: int, run_id: str | None, layout: Layout) -> None:
    """Complete a folder into which all ranks have written their parts: add the summary and flush everything to the disk.

    DeepSpeed's conversion scripts are removed, since they would load the folder unguarded (`task=export` does their work).
    """
    for script in folder.glob("*.py"):
        script.unlink()
    files = {str(path.relative_to(folder)): path.stat().st_size for path in _files(folder)}
    summary = FolderSummary(global_step, run_id, layout, files)
    (folder / SUMMARY).write_text(json.dumps(asdict(summary)))
    for path in [*_files(folder), folder / TAG, folder]:
        flush(path)


def read_summary(folder: Path) -> FolderSummary:
    """The summary of a folder, after a check that every file is there, whole, and holds nothing but data.

    Raises:
        ValueError, OSError, pickle.UnpicklingError: where the check fails.
    """
    content = json.loads((folder / SUMMARY).read_text())
    summary = FolderSummary(**content | {"layout": Layout(**content["layout"])})
    found = {str(path.relative_to(folder)): path.stat().st_size for path in _files(folder)}
    for name in sorted({*summary.files, *found} - {SUMMARY}):
        if summary.files.get(name) != found.get(name):
            raise ValueError(f"{name} has {found.get(name, 'no')} bytes, and {summary.files.get(name, 'none')} were written")
    if (folder / "latest").read_text() != TAG:
        raise ValueError(f"the file latest does not say {TAG}")
    with loading_data_only():
        for path in _files(folder):
            if path.suffix == ".pt":
                _check_part(path)
    return summary


def read_state(folder: Path) -> dict[str, Any]:
    """What a checkpoint's first part holds beside weights: counters, and the states of callbacks."""
    with loading_data_only():
        first = min((folder / TAG).glob("*model_states.pt"))
        state: dict[str, Any] = torch.load(first, map_location="cpu", mmap=True)
        return state


def consolidated_weights(folder: Path) -> dict[str, Tensor]:
    """The whole weights [of the LightningModule] in float32, on the CPU."""
    with loading_data_only(), contextlib.redirect_stdout(io.StringIO()):
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        return dict(get_fp32_state_dict_from_zero_checkpoint(str(folder), tag=TAG))


def check_checksums(path: Path) -> None:
    """Compare the checksums in a file of `torch.save`; torch itself does not.

    Raises:
        ValueError: naming the record that is damaged.
    """
    with zipfile.ZipFile(path) as archive:
        if (broken := archive.testzip()) is not None:
            raise ValueError(f"the checksum of {broken} is wrong")


def _check_part(path: Path) -> None:
    try:
        check_checksums(path)
        if code := torch.serialization.get_unsafe_globals_in_checkpoint(path):
            raise ValueError(f"it names {', '.join(code)}, which is not data, and nothing of it was run")
        torch.load(path, map_location="cpu", mmap=True)
    except Exception as error:
        raise ValueError(f"{path.name}: {error}") from error


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir())
