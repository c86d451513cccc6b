"""How long gradients are: a table of README.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from records import Row, endpoint_runs
from rules import ARMS, BASELINE, RATES

from oar_lightning.common.markdown import markdown
from oar_lightning.reporting.statistics import mean_interval

ABOUT = (
    "The norm of the gradient before clipping (at 1), a mean over the last tenth of training, over that of GRPO's run with the "
    "same seed: geometric means over pairs, with Student's t intervals of the logarithms. A higher rate ends elsewhere, so "
    "that arms are best compared with GRPO where both have the same one."
)


class Length(NamedTuple):
    """An arm's norm over GRPO's: how many pairs, the geometric mean, its 95 % interval."""

    pairs: int
    ratio: float
    low: float
    high: float


def length(own: Mapping[int, Row], base: Mapping[int, Row]) -> Length | None:
    """Of the pairs that have both norms; None of fewer than two."""
    norms = [(own[seed].grad_norm, base[seed].grad_norm) for seed in sorted(own.keys() & base.keys())]
    logs = [math.log(mine / grpos) for mine, grpos in norms if mine > 0 and grpos > 0]
    if len(logs) < 2:
        return None
    found = mean_interval(logs, bootstrap_from=math.inf)
    return Length(len(logs), *(math.exp(value) for value in (found.mean, found.low, found.high)))


def norm_table(rows: Sequence[Row], tasks: Iterable[str] = RATES) -> str:
    lines = [["task", "arm", "its rate", "GRPO's", "pairs", "norm over GRPO's [95 %]"]]
    for task in tasks:
        results = endpoint_runs(rows, task)
        base = results.get(BASELINE, {})
        for arm in ARMS:
            own = results.get(arm, {})
            if arm == BASELINE or (found := length(own, base)) is None:
                continue
            rates = (next(iter(runs.values())).lr for runs in (own, base))
            lines.append([f"`{task}`", arm, *rates, str(found.pairs), f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}]"])
    return markdown(lines)
