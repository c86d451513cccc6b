"""Starts jobs of two ranks for tests: two processes of `rank_worker.py` or another script."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from support.commands import Forked
from support.ports import free_port


def start(folder: Path, script: str, *arguments: str, ranks: int = 2) -> list[Forked]:
    """Start the ranks of a job. Each prints into `folder/rank<n>.log`."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    return [
        Forked(
            Path.cwd(),
            [str(Path(__file__).with_name(script)), str(folder), str(rank), str(ranks), *arguments],
            os.environ | shared | {"LOCAL_RANK": str(rank), "RANK": str(rank), "NODE_RANK": "0"},
            *[folder / f"rank{rank}.log"] * 2,
        )
        for rank in range(ranks)
    ]


def run_on_two(folder: Path, script: str, *arguments: str, timeout: float = 400) -> list[Any]:
    """Run a job of two ranks to its end. Returns what each rank saved in `folder/rank<n>.pt`."""
    return run_ranks(folder, script, *arguments, ranks=2, timeout=timeout)


def run_ranks(folder: Path, script: str, *arguments: str, ranks: int, timeout: float = 400) -> list[Any]:
    folder.mkdir(exist_ok=True)
    processes = start(folder, script, *arguments, ranks=ranks)
    try:
        for process in processes:
            assert process.wait(timeout) == 0, process.shown[-3000:]
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(ranks)]


def train_on_two(folder: Path, trainer: str, names: list[str]) -> list[dict[str, Any]]:
    """Train the named cases of `rank_worker.py` on two ranks under `trainer=<trainer>`. Returns the results of each rank."""
    return run_on_two(folder, "rank_worker.py", trainer, *names)
