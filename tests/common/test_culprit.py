"""The setting that a library refuses is found by leaving each out."""

from __future__ import annotations

import pytest

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.culprit import explained


def library(a: int = 1, b: int = 2) -> int:
    if b < 0 or a + b > 100:
        raise RuntimeError("no\nreason given")
    return a + b


def test_what_works_is_returned() -> None:
    assert explained(library, {"a": 3}, "block") == 5


def test_the_setting_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^block\.b=-1 is refused \(no reason given\); correct it"):
        explained(library, {"a": 3, "b": -1}, "block")


def test_where_no_single_one_is_at_fault_the_block_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^block is refused"):
        explained(library, {"a": 101, "b": 102}, "block")
