"""Records are sent in their order, and in requests that MLflow takes."""

from __future__ import annotations

from oar_lightning.tracking.batches import batches
from oar_lightning.tracking.journal import Position


def test_batches_keep_order_and_limit() -> None:
    kinds = [("metrics", 600), ("metrics", 400), ("metrics", 1), ("tags", 1), ("metrics", 1), ("metrics", 2)]
    records = [
        ({"n": n, "kind": kind, "values": dict.fromkeys(map(str, range(size)))}, Position(n + 1))
        for n, (kind, size) in enumerate(kinds)
    ]
    found = [([r["n"] for r in batch], end.records) for batch, end in batches(records)]
    assert found == [([0, 1], 2), ([2], 3), ([3], 4), ([4, 5], 6)]
