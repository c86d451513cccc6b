"""Who started a process, as the environment says; and Slurm's queue, with a stand-in for `scontrol`."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from support.commands import Forked
from support.fake_slurm import fake_scontrol
from support.ports import free_port

from oar_lightning.distributed.launch import is_first_rank, is_restart, requeue, run_name

SRUN = {"SLURM_JOB_ID": "4242", "SLURM_STEP_ID": "1", "SLURM_JOB_NAME": "train"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("SLURM_", "TORCHELASTIC_"))] + ["RANK", "LOCAL_RANK", "NODE_RANK"]:
        monkeypatch.delenv(name, raising=False)


def given(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


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


AGREE = """
import time
import torch.distributed as dist
from oar_lightning.distributed.launch import run_name
time.tzset()
print(run_name())
dist.init_process_group("gloo")
dist.barrier()
"""


@pytest.mark.parametrize("agent", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_torchruns_processes_agree_on_a_folder(agent: bool, tmp_path: Path) -> None:
    """Whatever the time is where each of them asks. They meet in the store of torchrun's agent or of the first rank, and there
    once more to train."""
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
            environment | {"RANK": str(rank), "TZ": f"UTC-{rank}"},
            tmp_path / f"out{rank}",
            tmp_path / f"err{rank}",
        )
        for rank in range(2)
    ]
    assert [process.wait(100) for process in processes] == [0, 0], [process.shown for process in processes]
    names = [process.out.read_text().strip() for process in processes]
    assert names[0] == names[1] != ""
    assert store is None or store.get("oar_lightning/run_name").decode() == names[0]


@pytest.mark.parametrize(
    ("state", "code", "calls", "says"),
    [
        ("RUNNING", 0, ["show job 4242", "requeue 4242"], "in the queue again"),
        ("CANCELLED", 0, ["show job 4242"], "was cancelled and is not put"),
        ("RUNNING", 1, ["show job 4242", "requeue 4242"], "requeue 4242 failed (Job is not permitted to be requeued)"),
    ],
)
def test_a_job_is_put_into_the_queue_again(
    state: str,
    code: int,
    calls: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    given(monkeypatch, SRUN | fake_scontrol(tmp_path, state, code))
    with caplog.at_level(logging.WARNING):
        requeue()
    assert (tmp_path / "calls").read_text().splitlines() == calls
    assert says in caplog.text


def test_where_there_is_no_scontrol_the_job_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given(monkeypatch, SRUN | {"PATH": str(tmp_path)})
    requeue()
    assert "scontrol requeue 4242 failed" in caplog.text
    assert "submit the job again with the ckpt_path" in caplog.text
