"""How a run ends, and what its tables hold."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from oar_lightning.tracking.tracker import Tracker


class Ends:
    """A tracking store that keeps how runs end."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def close(self, status: str) -> None:
        self.ends.append(status)


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "FINISHED"), (ValueError(), "FAILED"), (KeyboardInterrupt(), "KILLED"), (SystemExit(143), "KILLED")],
)
def test_a_run_ends_as_its_block_does(error: BaseException | None, status: str, tmp_path: Path) -> None:
    store = Ends()
    tracker = Tracker(tmp_path, store)  # type: ignore[arg-type]

    def end() -> None:
        with tracker.closing():
            if error is not None:
                raise error

    if error is None:
        end()
    else:
        with pytest.raises(type(error)):
            end()
    assert store.ends == [status]


def test_a_number_that_is_not_finite_is_null_in_a_table(tmp_path: Path) -> None:
    Tracker(tmp_path, None).write_table("t.json", {"a": [1.5, math.nan], "b": ["ä", -math.inf]})
    text = (tmp_path / "artifacts" / "t.json").read_text(encoding="utf-8")

    def refuse(name: str) -> None:
        raise AssertionError(f"JSON has no {name}")

    assert json.loads(text, parse_constant=refuse) == {"columns": ["a", "b"], "data": [[1.5, "ä"], [None, None]]}
