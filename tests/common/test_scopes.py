"""Signals that end a block like an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from oar_lightning.common.scopes import sigterm_as_exit


def test_sigterm_unwinds_and_its_default_comes_back() -> None:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    with pytest.raises(SystemExit) as caught, sigterm_as_exit():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_what_answers_already_stays() -> None:
    heard: list[int] = []
    former = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with sigterm_as_exit():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, former)
    assert heard == [signal.SIGTERM]


def test_ctrl_c_ends_at_once_where_an_exception_would_be_lost() -> None:
    """In a destructor Python prints an exception, and goes on."""
    program = """
import os, signal
from oar_lightning.common.scopes import ctrl_c_ends

class Lost:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

with ctrl_c_ends(lambda: print("cleaned", flush=True)):
    pass
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
with ctrl_c_ends(lambda: print("cleaned", flush=True)):
    Lost()
print("went on")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "cleaned\n", "stopped before the work began\n")
