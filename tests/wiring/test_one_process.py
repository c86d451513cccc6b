"""Evaluation, scoring and the lab work in one process."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from oar_lightning.common.config_check import ConfigError
from oar_lightning.wiring.one_process import check_one_process


def test_one_process_is_fine() -> None:
    for trainer in ({"devices": 1}, {"devices": "auto", "strategy": "auto"}, {}):
        check_one_process(OmegaConf.create({"task": "evaluate", "trainer": trainer}))


@pytest.mark.parametrize("trainer", [{"devices": 2}, {"devices": 1, "strategy": "ddp"}, {"num_nodes": 2}])
def test_settings_of_several_are_refused(trainer: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"task=evaluate works in one process, .* set trainer=cpu or trainer=gpu"):
        check_one_process(OmegaConf.create({"task": "evaluate", "trainer": trainer}))


def test_ranks_that_torchrun_has_started_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oar_lightning.wiring.one_process.started_tasks", lambda: (2, 1))
    with pytest.raises(ConfigError, match="task=score works in one process, and 2 were started"):
        check_one_process(OmegaConf.create({"task": "score", "trainer": {"devices": 1}}))
