"""Which rank failed first: errors, not the end of a trial by pruning, which is every rank's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from oar_lightning.sweep.trial import Pruned
from oar_lightning.training.callbacks.errors import FirstError, first_error


def test_a_pruned_trial_is_no_error_of_a_rank(tmp_path: Path) -> None:
    callback, trainer = FirstError(tmp_path), cast(Any, SimpleNamespace(world_size=2, global_rank=1))
    callback.on_exception(trainer, cast(Any, None), Pruned("worse than the median"))
    assert first_error(tmp_path) is None
    callback.on_exception(trainer, cast(Any, None), ZeroDivisionError("by zero"))
    found = first_error(tmp_path)
    assert found is not None
    assert found.rank == 1
