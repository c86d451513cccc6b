"""Runs `python -m oar_lightning ...` and other programs for tests.

Half of a short command's time goes into imports. Therefore each program is forked from a process that has imported the package
and done nothing else: the standard library's fork server, one for each process of pytest.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest import mock

MODULE = [sys.executable, "-m", "oar_lightning"]
"""The command in a new Python process, which imports everything itself."""

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "oar_lightning.sweep.multirun",
        "oar_lightning.tasks.train",
        # what a run imports later, when it needs it; where one is not installed, the fork server goes on without it
        "accelerate",
        "deepspeed",
        "mlflow.store.tracking.sqlalchemy_store",
        "peft",
        "transformers.models.qwen2.modeling_qwen2",
        "transformers.optimization",
        "support.fork_server",
    ]
)
TESTS = Path(__file__).parents[1]


@functools.cache
def _start_fork_server() -> None:
    """The server finds `support` by PYTHONPATH, which the forked programs do not inherit."""
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])):
        forkserver.ensure_running()


def environment(**variables: str) -> dict[str, str]:
    """The environment of the tests and `variables`, without the variables that name an MLflow store or configure Hydra."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "HYDRA_"))}
    return kept | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"} | variables


class Forked:
    """A running Python program that was forked; its methods are those of `subprocess.Popen`."""

    def __init__(self, folder: Path, program: Sequence[str], variables: Mapping[str, str], out: Path, err: Path) -> None:
        """`program`: a script, or `-m` and a module, and the arguments. `out` and `err`: the files of its two outputs."""
        self.program = program
        self.out, self.err = out, err
        for path in (out, err):
            path.write_bytes(b"")
        _start_fork_server()
        self._process = _FORKS.Process(target=_work, args=(str(folder), list(program), dict(variables), str(out), str(err)))
        self._process.start()

    @property
    def shown(self) -> str:
        """Both outputs so far."""
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in dict.fromkeys((self.out, self.err)))

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            self.kill()
            raise subprocess.TimeoutExpired(self.program, timeout, self.shown)
        return self._process.exitcode

    def wait_for(self, text: str, timeout: float = 120) -> None:
        """Return when `text` has been printed. Fails if the program ends before, or after `timeout` seconds."""
        end = time.monotonic() + timeout
        while text not in self.shown:
            assert self.poll() is None, self.shown
            assert time.monotonic() < end, f"no {text!r} in {timeout} s:\n{self.shown}"
            time.sleep(0.02)

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()


@dataclass(frozen=True)
class Done:
    """The exit code and the outputs of a command that has ended."""

    code: int
    stdout: str
    stderr: str
    imported: tuple[str, ...] = ()
    """Slow packages that it has imported; known of `run_light` only."""

    @property
    def shown(self) -> str:
        return self.stdout + self.stderr


@contextlib.contextmanager
def started(folder: Path, *arguments: str, **variables: str) -> Iterator[Forked]:
    """Start `python -m oar_lightning <arguments>` in a folder. It is killed at the end of the block if it still runs."""
    with tempfile.TemporaryDirectory() as logs:
        program = ["-m", "oar_lightning", *arguments]
        command = Forked(folder, program, environment(**variables), Path(logs, "out"), Path(logs, "err"))
        try:
            yield command
        finally:
            command.kill()


def run(folder: Path, *arguments: str, timeout: float = 120, **variables: str) -> Done:
    """Run `python -m oar_lightning <arguments>` in a folder to its end."""
    with started(folder, *arguments, **variables) as command:
        code = command.wait(timeout)
        return Done(code, command.out.read_text(encoding="utf-8"), command.err.read_text(encoding="utf-8"))


def run_from_scratch(folder: Path, *arguments: str, timeout: float = 200, **variables: str) -> Done:
    """`run` in a new Python process, which imports everything itself."""
    done = subprocess.run(
        [*MODULE, *arguments], cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=timeout
    )
    return Done(done.returncode, done.stdout, done.stderr)


@functools.cache
def _light_server() -> subprocess.Popen[str]:
    """One for each process of pytest; ends with it, when its standard input is closed."""
    script = Path(__file__).with_name("light_server.py")
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, str(script)], env=environment(PYTHONPATH=path), text=True, **pipes)


def run_light(folder: Path, *arguments: str) -> Done:
    """`run` for commands that end soon: forked from a process without anything slow, so that `imported` tells something."""
    server = _light_server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as logs:
        out, err, imported = (Path(logs, name) for name in ("out", "err", "imported"))
        request = {"folder": str(folder), "arguments": arguments, "variables": environment(), "outputs": [str(out), str(err)]}
        print(json.dumps({**request, "imported": str(imported)}), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        slow = tuple(json.loads(imported.read_text(encoding="utf-8")))
        return Done(code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"), slow)


def _work(folder: str, program: list[str], variables: dict[str, str], *outputs: str) -> None:
    """What the forked process does: set up folder, environment and outputs, then run the program."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.dont_write_bytecode = bool(variables.get("PYTHONDONTWRITEBYTECODE"))
    sys.path[:0] = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        runpy.run_path(program[0], run_name="__main__")
