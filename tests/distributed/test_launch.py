"""Who started a process, as the environment says."""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path

import pytest
from support.commands import Forked
from support.fake_slurm import SRUN, given
from support.ports import free_port

from oar_lightning.distributed.launch import (
    FIRST_RANK,
    end_with_first_rank,
    fill_in_tasks_per_node,
    is_first_rank,
    is_restart,
    run_name,
    started_tasks,
)

pytestmark = pytest.mark.usefixtures("by_hand")


@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ({}, True),
        ({"LOCAL_RANK": "0"}, True),
        ({"LOCAL_RANK": "1"}, False),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, False),
        ({"RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "x"}, True),
        ({"RANK": "8", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "x"}, False),
        (SRUN | {"SLURM_PROCID": "0"}, True),
        (SRUN | {"SLURM_PROCID": "3", "SLURM_LOCALID": "0"}, False),
        # torchrun, one a node, started by srun
        (SRUN | {"SLURM_PROCID": "1", "TORCHELASTIC_RUN_ID": "x", "RANK": "8", "LOCAL_RANK": "0"}, False),
        (SRUN | {"SLURM_PROCID": "1", "TORCHELASTIC_RUN_ID": "x", "RANK": "0", "LOCAL_RANK": "0"}, True),
        # a shell that Slurm gave to a user
        (SRUN | {"SLURM_JOB_NAME": "bash", "SLURM_PROCID": "3"}, True),
    ],
)
def test_one_process_of_a_launch_speaks_for_all(
    variables: dict[str, str], first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, variables)
    assert is_first_rank() == first


def test_torchrun_says_when_it_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"})
    assert not is_restart()
    given(monkeypatch, {"TORCHELASTIC_RESTART_COUNT": "2"})
    assert is_restart()


def test_a_slurm_step_has_one_folder_and_finds_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, SRUN)
    assert run_name() == "slurm-4242.1"
    assert not is_restart()
    given(monkeypatch, {"SLURM_RESTART_COUNT": "1"})
    assert run_name() == "slurm-4242.1"
    assert is_restart()
    given(monkeypatch, {"SLURM_ARRAY_JOB_ID": "4240", "SLURM_ARRAY_TASK_ID": "7"})
    assert run_name() == "slurm-4240_7.1"
    given(monkeypatch, {"SLURM_JOB_NAME": "interactive"})
    assert not run_name().startswith("slurm")
    assert not is_restart()


@pytest.mark.parametrize(
    ("variables", "started"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"}, None),  # the job's script, which srun has not started
        (SRUN | {"SLURM_NTASKS": "4", "SLURM_NNODES": "2"}, (4, 2)),
        (SRUN | {"SLURM_NTASKS": "2", "TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "16", "GROUP_WORLD_SIZE": "2"}, (16, 2)),
    ],
)
def test_the_ranks_that_a_launcher_has_started(
    variables: dict[str, str], started: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, variables)
    assert started_tasks() == started


def test_tasks_per_node_are_those_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only `--ntasks` was given, and where the job has other numbers than its step."""
    given(monkeypatch, SRUN | {"SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "8"})
    fill_in_tasks_per_node()
    assert os.environ["SLURM_NTASKS_PER_NODE"] == "2"


def test_a_rank_that_loads_ends_with_the_one_that_has_started_it() -> None:
    read, write = os.pipe()  # it is at its end when the last process with the other end is
    if (first := os.fork()) == 0:
        if os.fork() == 0:
            os.environ |= {"LOCAL_RANK": "1", FIRST_RANK: str(os.getppid())}
            end_with_first_rank()
            time.sleep(60)
        os._exit(0)
    os.close(write)
    os.waitpid(first, 0)
    assert select.select([read], [], [], 20)[0]
    assert os.read(read, 1) == b""
    os.close(read)


def test_an_ordinary_process_watches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    end_with_first_rank()
    given(monkeypatch, {FIRST_RANK: "1"})
    end_with_first_rank()  # the first rank itself, while it starts the others
    assert threading.active_count() == before


AGREE = """
import time
import torch.distributed as dist
from oar_lightning.distributed.launch import is_restart, run_name
time.tzset()
print(run_name())
print(is_restart())
dist.init_process_group("gloo")
dist.barrier()
"""


@pytest.mark.parametrize("agent", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_torchruns_processes_agree_on_a_folder_and_on_going_on(agent: bool, tmp_path: Path) -> None:
    """Whatever the time is where each of them asks, and though only the agent of a rank that has died counts a restart. They
    meet in the store of torchrun's agent or of the first rank, and there once more to train."""
    from torch.distributed import TCPStore

    port = free_port()
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False) if agent else None
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": str(agent)}
    environment = os.environ | meet | {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"}
    script = tmp_path / "agree.py"
    script.write_text(AGREE)
    processes = [
        Forked(
            tmp_path,
            [str(script)],
            environment | {"RANK": str(rank), "TZ": f"UTC-{rank}", "TORCHELASTIC_RESTART_COUNT": str(rank)},
            tmp_path / f"out{rank}",
            tmp_path / f"err{rank}",
        )
        for rank in range(2)
    ]
    assert [process.wait(100) for process in processes] == [0, 0], [process.shown for process in processes]
    (name, again), other = [process.out.read_text().split() for process in processes]
    assert [name, again] == other == [name, "True"]
    assert store is None or store.get("oar_lightning/run_name").decode() == name
