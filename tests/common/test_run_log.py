"""A run's log file begins when the run does, with what was logged before."""

from __future__ import annotations

import logging
from pathlib import Path

from oar_lightning.common.run_log import RunLog


def test_early_records_are_kept_until_the_run_begins(tmp_path: Path) -> None:
    log, file = logging.Logger("a run"), tmp_path / "run.log"
    handler = RunLog(str(file))
    log.addHandler(handler)
    log.warning("early")
    assert not file.exists()
    handler.begin()
    log.warning("late")
    handler.close()
    assert file.read_text() == "early\nlate\n"
