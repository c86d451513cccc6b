"""How problems are dealt out to the ranks of a job."""

from __future__ import annotations

import pytest

from oar_lightning.distributed.ranks import per_rank


def test_problems_that_cannot_be_dealt_out_are_refused() -> None:
    assert per_rank("update.problems", 6, 3) == 2
    with pytest.raises(
        ValueError, match=r"update\.problems=7 .* 2 of them; set update\.problems to 6 or 8, or trainer\.devices"
    ):
        per_rank("update.problems", 7, 2)
    with pytest.raises(ValueError, match="to 4, or"):
        per_rank("update.problems", 3, 4)
