"""Signals that end a block like an error."""

from __future__ import annotations

import os
import signal

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
