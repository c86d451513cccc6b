"""Ranks that would begin at different steps."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest

from oar_lightning.training.callbacks import same_start
from oar_lightning.training.callbacks.same_start import SameStart


@pytest.mark.parametrize(("steps", "refused"), [([4, 4], False), ([0, 4], True), ([4], False)])
def test_ranks_begin_at_one_step(steps: list[int], refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_start, "all_gather", lambda own: steps)
    unused: Any = L.LightningModule()
    begin = lambda: SameStart(steps[0]).setup(L.Trainer.__new__(L.Trainer), unused, "fit")  # noqa: E731
    if refused:
        with pytest.raises(RuntimeError, match=r"different steps \[0, 4\]"):
            begin()
    else:
        begin()
