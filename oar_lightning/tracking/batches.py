"""Records as they are sent: how many in one request, and in which parts once one was refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from oar_lightning.tracking.journal import Position, Record

MAX_METRICS = 1000
"""MLflow's limit for one request."""


def batches(records: Iterable[tuple[Record, Position]]) -> Iterator[tuple[list[Record], Position]]:
    """Records that are sent in one request, with the position after them: neighbouring metrics up to MLflow's limit, any
    other record alone."""
    batch: list[Record] = []
    end, size = Position(), 0
    for record, position in records:
        count = len(record["values"]) if record["kind"] == "metrics" else MAX_METRICS
        if batch and size + count > MAX_METRICS:
            yield batch, end
            batch, size = [], 0
        batch.append(record)
        end, size = position, size + count
    if batch:
        yield batch, end


def divided(records: list[Record]) -> list[Record]:
    """A batch as its single records, a single record as one record for each of its values; [] where it has at most one."""
    if len(records) > 1:
        return records
    values = records[0].get("values", {})
    return [{**records[0], "values": {key: value}} for key, value in values.items()] if len(values) > 1 else []
