"""The table of all metrics, from `oar_lightning.tracking.metric_table`."""

from __future__ import annotations

import itertools

from markdown_text import code, escaped, table

from oar_lightning.tracking.metric_table import METRICS


def metrics() -> str:
    out = []
    for group, entries in itertools.groupby(METRICS, key=lambda entry: entry.group):
        rows = [[code(e.name), escaped(e.unit), escaped(e.meaning), escaped(e.when)] for e in entries]
        out.append(f"### {group}\n\n{table(['metric', 'unit', 'meaning', 'logged'], rows)}")
    return "\n\n".join(out)
