"""How long steps take: a table of README.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from records import Row
from rules import ARMS, RATES
from tables import times_of

from oar_lightning.common.markdown import markdown

ABOUT = (
    "The time of a run's steps, evaluations left out, in that of the same without its scoring, which is GRPO's with as many "
    "completions: medians of runs beyond tuning that kept their seconds, with the lowest and the highest. *-*: none did; "
    "perfect credit, whose scoring makes no pass of the policy, and GRPO need none. Of `turning_point` and "
    "`turning_point_shuffled` these are from before its continuations copied ([since then](#in-equal-time))."
)
STAGES = ("endpoint", "again", "time")


def step_time_table(rows: Sequence[Row], tasks: Iterable[str] = RATES) -> str:
    tasks = list(tasks)
    lines = [["arm", *(f"`{task}`" for task in tasks)]]
    for arm in ARMS:
        cells = [shown(times_of(rows, task, arm, "step_s", STAGES)) for task in tasks]
        lines += [[arm, *cells]] if set(cells) != {"-"} else []
    return markdown(lines)


def shown(times: Sequence[float]) -> str:
    return f"{median(times):.2f} ({min(times):.2f} to {max(times):.2f}; {len(times)} runs)" if times else "-"
