"""Several ranks against one: the same seed and global batch give the same losses, weights and metrics."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_worker import cases, train

from oar_lightning.ranks import interleaved, share

NAMES = list(cases())
METHODS = NAMES[:3]


def start(folder: Path, script: str, *arguments: str, ranks: int = 2) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), str(folder), str(rank), str(ranks), *arguments],
            env=os.environ | shared | {"LOCAL_RANK": str(rank), "RANK": str(rank), "NODE_RANK": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What one rank makes of the cases, and what each of two does."""
    folder = tmp_path_factory.mktemp("ranks")
    processes = start(folder, "rank_worker.py", *NAMES)
    try:
        one = train(NAMES)
        for process in processes:
            output = process.communicate(timeout=120)[0]
            assert process.returncode == 0, output[-3000:]
    finally:
        for process in processes:
            process.kill()
    return one, [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", NAMES)
def test_the_losses_are_those_of_one_rank(name: str, both: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    one, two = both[0][name]["rows"], both[1][0][name]["rows"]
    assert list(one) == list(two)
    for step in one:
        assert ("loss" in one[step]) == ("loss" in two[step])
        if "loss" in one[step]:
            print(
                name,
                step,
                one[step]["loss"],
                two[step]["loss"],
                abs(one[step]["loss"] - two[step]["loss"]) / abs(one[step]["loss"] + 1e-30),
            )
