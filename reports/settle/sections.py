"""The sections of README.md that study.py writes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import step_times
import temperatures
from asked import asked_table
from greedy import greedy_table
from norms import ABOUT, norm_table
from records import Row
from rules import (
    AGAIN,
    AS_LONG_AS_OAR_G,
    AT_NO_PASS,
    BASELINE,
    BOTH_LEVELS,
    ESTIMATE_LONG,
    GREEDY_TASK,
    LONG,
    MISPLACED,
    ONE_CHANGED,
    OTHER_SEEDS,
    OTHER_UPDATES,
    PENALTY,
    PERFECT,
    PERFECT_LONG,
    PLACES,
    PROBES,
    RATES,
    SELDOM,
    SELDOM_LONG,
    SHORT,
    STABLE_TAU,
    STATES_LONG,
    UPDATES,
)
from tables import (
    EQUAL_TIME,
    comparison_table,
    endpoint_table,
    equal_time_table,
    half_table,
    higher_rate_table,
    lasting_table,
    same_table,
    tuning_table,
)

from oar_lightning.common.markdown import markdown
from oar_lightning.reporting.checklist import FAMILIES

SCORERS = {
    **dict.fromkeys((BASELINE, "grpo_more", "grpo_double", LONG, AS_LONG_AS_OAR_G, PENALTY, "grpo_higher"), "uniform"),
    **dict.fromkeys(("oar_g_last", "oar_g_joint", "oar_g_in_sharp_gate", "oar_g_higher", *ONE_CHANGED), "oar_g"),
    **dict.fromkeys((PERFECT, PERFECT_LONG, "oracle_in_oars_gate"), "oracle"),
    **dict.fromkeys((SHORT, SELDOM, ESTIMATE_LONG, SELDOM_LONG), "turning_point"),
    **dict.fromkeys(MISPLACED, "shuffled"),
    STATES_LONG: "anchor_states",
    "vineppo": "monte_carlo",
    "eighty_twenty": "entropy",
}
"""Arm -> its scorer, where that has another name."""

OF_PAIRS = (
    "The accuracy is of all runs of an arm, a difference of the pairs with the same seed alone. The entropy is of the "
    "completions that an update reads, which are those with an advantage, but of `entropy_penalty`, whose loss has a term of "
    "each, all."
)
ALL_ASKED = (
    "The answers above are each of one comparison, as the rules have it. Here are all that have their pairs, the smallest p "
    "first (two-sided t test), with the p that Holm's rule makes of it for so many comparisons."
)


def named(arms: Iterable[str], rows: Sequence[Row]) -> str:
    """Those of the arms that have runs beyond tuning."""
    run = {row.arm for row in rows if row.stage != "tune"}
    return ", ".join(f"`{arm}`" for arm in arms if arm in run) or "not run yet"


def time_in_all(rows: Sequence[Row]) -> str:
    recorded = [row.cpu_s for row in rows if not math.isnan(row.cpu_s)]
    of_all = f", of {len(recorded)} of them" if len(recorded) < len(rows) else ""
    return f"{len(rows)} runs, {sum(recorded) / 3600:.1f} hours{of_all}"


def by_kind(rows: Sequence[Row], place: int) -> str:
    """The arms that have run, by their granularity (place 0) or by the family of their estimate (1)."""
    kinds: dict[str, list[str]] = {}
    for arm in sorted({row.arm for row in rows}):
        kinds.setdefault(FAMILIES[SCORERS.get(arm, arm)][place], []).append(f"`{arm}`")
    return "; ".join(f"{kind}: {', '.join(arms)}" for kind, arms in sorted(kinds.items())) or "no runs yet"


def checklist(rows: Sequence[Row]) -> str:
    """The items of the survey arXiv 2604.09459, appendix C."""
    lengths = [row.mean_length for row in rows if row.stage != "tune" and row.state == "complete"]
    lengths = [length for length in lengths if not math.isnan(length)]
    return markdown(
        [
            ["item", "here"],
            ["base model and size", "built-in policies: 0.9 M parameters (`graph`), else 0.34 M"],
            ["training data, size, filters", "generated without end by seed; no filters"],
            ["granularity", by_kind(rows, 0)],
            ["family of the method", by_kind(rows, 1)],
            [
                "baseline without credit, same base model",
                named((BASELINE, EQUAL_TIME, "grpo_double", LONG, AS_LONG_AS_OAR_G), rows),
            ],
            ["batch", "2 problems (`graph`), else 8, with 8 completions each, but 10 of `grpo_more` and 16 of `grpo_double`"],
            ["compute", f"{UPDATES} updates, but of {named(OTHER_UPDATES, rows)}, whose tables have their numbers"],
            ["benchmarks and splits", "1,024 new problems: on `graph` of held-out structures, else of trained sums"],
            ["metric", "sampled accuracy at temperature 1 after the last update, 4 samples a problem"],
            ["processor time in all", time_in_all(rows)],
            [
                "mean length of completions, tokens",
                f"{min(lengths):.0f} to {max(lengths):.0f} (not of tuning, nor of runs that were given up)"
                if lengths
                else "no runs yet",
            ],
            ["ablation of the credit", named(("random", "shuffled", "position", *MISPLACED), rows)],
            ["told the truth", named((PERFECT, "oracle_in_oars_gate", PERFECT_LONG), rows)],
            ["spread", "Student's t 95 % intervals over pairs by seed"],
            ["cost of credit, forward passes of the batch", "column `passes of scoring`"],
            ["shortest and longest of a batch, tokens", "not kept"],
        ]
    )


def revisions(rows: Iterable[Row]) -> str:
    """Which revisions of the package made the runs beyond tuning."""
    made = Counter((row.task, row.stage, row.arm, row.revision[:8]) for row in rows if row.stage != "tune")
    found: dict[tuple[str, str, str], list[str]] = {}
    for (*which, revision), count in sorted(made.items()):
        found.setdefault((which[0], which[1], which[2]), []).append(f"{revision} ({count})")
    lines = [["task", "stage", "arm", "revisions (runs)"]]
    return markdown(lines + [[f"`{task}`", stage, arm, ", ".join(made)] for (task, stage, arm), made in found.items()])


def page(rows: Sequence[Row]) -> str:
    parts = []
    for task in RATES:
        parts.append(f"### `{task}`: tuning\nMean accuracy in % at each rate. Bold: chosen.\n\n{tuning_table(rows, task)}")
        parts.append(f"### `{task}`: endpoint\n{OF_PAIRS}\n\n{endpoint_table(rows, task)}")
    parts.append(
        f"### Half of what perfect credit gains\nMean leads in points over {len(OTHER_SEEDS)} pairs.\n\n{half_table(rows)}"
    )
    probes = comparison_table(rows, PROBES, "the mean over the answer")
    parts.append(f"### The mean over the answer as outcome probe, on `{PROBES.task}`\n{probes}")
    again = comparison_table(rows, AGAIN, f"`{AGAIN.arm}`", "again")
    parts.append(f"### OAR-G where answers have several tokens, on `{AGAIN.task}`, seeds 300 to 323\n{again}")
    at_no_pass = comparison_table(rows, AT_NO_PASS, f"`{AT_NO_PASS.arm}`", "again")
    parts.append(f"### An estimate that costs no pass, on `{AT_NO_PASS.task}`, seeds 300 to 323\n{at_no_pass}")
    places = "\n\n".join(comparison_table(rows, one, f"`{one.arm}` on `{one.task}`") for one in PLACES)
    parts.append(f"### The same weights on other tokens\n{places}")
    parts.append(f"### In equal time\n{equal_time_table(rows)}")
    parts.append(f"### How long steps take\n{step_times.ABOUT}\n\n{step_times.step_time_table(rows)}")
    parts.append(f"### Where both train on\n{lasting_table(rows)}")
    levels = comparison_table(rows, BOTH_LEVELS, "OAR-G with both levels")
    parts.append(f"### Both levels of the gate, on `{BOTH_LEVELS.task}`\n{levels}")
    parts.append(f"### Tau from 0.3 to 0.7, on `{STABLE_TAU.task}`\n{same_table(rows, STABLE_TAU)}")
    parts.append(f"### At a higher rate\n{higher_rate_table(rows)}")
    parts.append(f"### More than a sharper policy, on `{GREEDY_TASK}`\n{greedy_table(rows)}")
    parts.append(f"### How long gradients are\n{ABOUT}\n\n{norm_table(rows)}")
    parts.append(f"### The untrained policies at lower temperatures\n{temperatures.table()}")
    parts.append(f"### All that was asked beforehand\n{ALL_ASKED}\n\n{asked_table(rows)}")
    parts.append(f"### Checklist\n{checklist(rows)}")
    return "\n\n".join([*parts, f"### Revisions\n{revisions(rows)}"])
