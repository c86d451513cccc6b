"""Runs commands in forks of a process that has imported what every command imports first, and nothing slow.

A request is a line of JSON on the standard input, the answer a line on the standard output. See `commands.run_light`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from typing import Any

from support.quick_configs import warm_up

import oar_lightning.sweep.multirun
import oar_lightning.wiring.refusals  # noqa: F401  (imported once for all forks)

SLOW = ("torch", "lightning", "transformers", "mlflow", "optuna", "scipy", "pandas", "matplotlib", "datasets", "deepspeed")


def run(folder: str, arguments: list[str], variables: dict[str, str], outputs: list[str], imported: str) -> int:
    """The forked process's work; returns its exit code. `imported`: a file for the slow packages that it has imported."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    sys.argv = ["oar_lightning", *arguments]
    code: Any = 0
    try:
        runpy.run_module("oar_lightning", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    with open(imported, "w", encoding="utf-8") as file:
        json.dump([name for name in SLOW if name in sys.modules], file)
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    warm_up()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(run(**json.loads(line)))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()
