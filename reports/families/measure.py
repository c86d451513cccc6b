"""Families of credit against GRPO: the tables of README.md.

    python reports/families/measure.py sqlite:///mlflow.db families    # adds the runs of the sweeps `families_...` to runs.csv
    python reports/families/measure.py                                 # the tables of what runs.csv holds

What the studies `methods` and `one_step` have run is read from their runs.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mlflow import MlflowClient

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.reporting import ReportConfig, read_runs
from oar_lightning.reporting.bands import END_COLUMNS, ends_of
from oar_lightning.reporting.factors import ABSENT, level, overrides
from oar_lightning.reporting.rows import read_rows, write_rows
from oar_lightning.reporting.runs import RunRecord, ended, read_curves
from oar_lightning.reporting.statistics import mean_interval

HERE = Path(__file__).parent
EARLIER = {
    "asides": HERE.parent / "2026-11-21-methods" / "runs.csv",
    "one_step": HERE.parent / "2026-11-22-one_step" / "runs.csv",
}
"""Variant -> the study of it that came before."""

TASKS = {"asides": "chain", "one_step": "chain", "graph": "graph", "graph_hints": "graph"}
"""Variant -> the set that it is evaluated on; `graph_hints` is `graph` with the policy that reads hints."""

EXPERIMENTS = (
    *("grpo", "eighty_twenty", "information_gain", "total_effect_fast", "oar_g", "oar_p", "oracle"),
    *("capo", "shear", "acpo", "acpo_add", "spro", "prime", "istar"),
    *("rlsd", "rlsd_contrast", "rlcsd", "serl", "action_mask"),
    *("anchor_states", "gigpo", "turning_point"),
)
ARMS: dict[str, tuple[str, ...]] = {
    **{name: (f"+experiment={name}",) for name in EXPERIMENTS},
    "entropy": ("+experiment=oar_g", "scorer=entropy"),
    "vineppo": ("+experiment=vineppo", "scorer/segments=task_steps", "scorer.samples=2"),
    "aer": ("+experiment=grpo", "entropy=adaptive"),
    "curriculum": ("+experiment=grpo", "curriculum=difficulty"),
}
"""Method -> its overrides, of those whose steps are timed."""
CONTROLS: dict[str, tuple[str, ...]] = {
    **{name: ("+experiment=oar_g", f"scorer={name}") for name in ("random", "shuffled", "inverted")},
    "oracle_results": ("+experiment=oracle", "scorer.locate.which=results"),
}
"""The same of those whose steps are not: they cost what others do."""

SOLUTIONS = ("rlsd", "serl")
"""Methods that are told another solution in place of an answer on `graph_hints`, whose policy reads no other hint."""

TUNING, REPORTED = (0, 1), (2, 3, 4)
"""Seeds by which a method's rate is chosen, and those that are compared."""

BASELINE = "grpo"
NAMES = {
    ("uniform", ""): BASELINE,
    ("oracle", ""): "oracle",
    ("oracle", "first_error"): "oracle",
    ("oracle", "results"): "oracle_results",
}
"""(Scorer, `scorer.locate.which`) -> method, where the scorer's name is not the method's."""

TOLD = ("oracle", "oracle_results", "capo")
"""Methods that know what went wrong."""


class Row(NamedTuple):
    """A run; `accuracy` is the sampled one at its last evaluation, `state` complete or failed (given up, because that accuracy
    was below half of the one before training). What follows `run_id` is NaN of runs that were read before it was kept; of them
    `before` is the accuracy before training, and those from `grad_norm` on are means over the last tenth of training."""

    study: str
    variant: str
    method: str
    lr: float
    seed: int
    accuracy: float
    seconds: float
    state: str
    revision: str
    run_id: str
    cpu_s: float = math.nan
    before: float = math.nan
    grad_norm: float = math.nan
    ess_ratio: float = math.nan
    mean_length: float = math.nan
    forward_equivalents: float = math.nan


BESIDE = {"adaptive": "aer", "difficulty": "curriculum"}
"""Overrides of entropy and curriculum -> what GRPO is called with them."""


def arm(variant: str, method: str) -> tuple[str, ...]:
    """The overrides of a method on a variant."""
    hint = ("scorer.hint=correct_sibling",) if variant == "graph_hints" and method in SOLUTIONS else ()
    return (*(ARMS | CONTROLS)[method], *hint)


def variant_of(run: RunRecord) -> str:
    policy = overrides(run).get("policy", "")
    return policy if policy in TASKS else str(level(run, "variant"))


def method_of(run: RunRecord) -> str:
    """The experiment or the scorer that was put into it, with the sign of the advantages if only these are reshaped; or what
    GRPO has beside it."""
    beside = [overrides(run).get(key, "none") for key in ("entropy", "curriculum")]
    if chosen := [BESIDE[name] for name in beside if name != "none"]:
        return "+".join(chosen)
    scorer, which = (("" if level(run, key) == ABSENT else str(level(run, key))) for key in ("scorer", "scorer.locate.which"))
    name = scorer if "scorer" in overrides(run) else str(level(run, "experiment"))
    signs = overrides(run).get("gate.advantages", "both")
    return NAMES.get((name, which), name) + ("" if signs == "both" else f"_{signs}")


def read_store(uri: str, sweeps: str, whole: bool = True) -> Iterator[Row]:
    """The ended runs of the sweeps whose names begin so. `whole`: also what is read from their curves, which takes a while."""
    client = MlflowClient(uri)
    _, runs = read_runs(client, "oar_lightning", ReportConfig(filter=f"tags.sweep LIKE '{sweeps}_%'", name=sweeps))
    runs = ended(runs)
    evaluated = [f"eval/{name}/avg_at_4" for name in set(TASKS.values())]
    curves = read_curves(client, runs, [*END_COLUMNS.values(), *evaluated]) if whole else {}
    for run in runs:
        variant = variant_of(run)
        accuracy = f"eval/{TASKS[variant]}/avg_at_4"
        first = curves.get(accuracy, {}).get(run.run_id)
        yield Row(
            study=run.tags["sweep"],
            variant=variant,
            method=method_of(run),
            lr=float(level(run, "optimizer.lr")),
            seed=int(run.seed),
            accuracy=run.metrics[accuracy],
            seconds=run.duration_s,
            state=run.state,
            revision=run.tags["git_revision"],
            run_id=run.run_id,
            cpu_s=run.metrics.get("time/total_cpu_s", math.nan),
            before=float(first.values[0]) if first is not None and first.steps[0] == 0 else math.nan,
            **ends_of(run, curves),
        )


def read_csv(path: Path) -> list[Row]:
    return read_rows(Row, path)


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    write_rows(Row, path, rows)


def earlier_rows() -> Iterator[Row]:
    """The runs of the studies that came before, which gave none up."""
    for variant, path in EARLIER.items():
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                which = row.get("scorer.locate.which", "").replace("default", "")
                if row["state"] == "complete":
                    yield Row(
                        study=path.parent.name,
                        variant=variant,
                        method=NAMES.get((row["scorer"], which), row["scorer"]),
                        lr=float(row["optimizer.lr"]),
                        seed=int(row["seed"]),
                        accuracy=float(row["objective"]),
                        seconds=float(row["duration_s"]),
                        state=row["state"],
                        revision=row["git_revision"],
                        run_id=row["run_id"],
                    )


Results = dict[tuple[str, float], dict[int, float]]
"""(Method, rate) -> seed -> accuracy in points."""


def table(rows: Iterable[Row], cost: Mapping[str, float]) -> str:
    """A line for each method and rate of a variant. Bold: a method's best rate. A run that was given up counts with its
    last accuracy: without it a method would look better for failing. Of runs with the same settings the last counts."""
    last = {(row.method, row.lr, row.seed): row for row in rows}
    results: Results = {}
    for row in last.values():
        results.setdefault((row.method, row.lr), {})[row.seed] = 100 * row.accuracy
    failed = Counter((row.method, row.lr) for row in last.values() if row.state != "complete")
    best = best_rates(results)
    baseline = (BASELINE, best[BASELINE])
    header = ["method", "rate", "seeds 0, 1", "seeds 2 to 4", "difference from GRPO [95 %]", "of seeds 0 to 4 [95 %]"]
    lines = [[*header, "given up", "s a step"]]
    for (method, lr), found in sorted(results.items(), key=lambda item: (item[0][0] != BASELINE, item[0])):
        means = [mean_of(found, seeds) for seeds in (TUNING, REPORTED)]
        if best.get(method) == lr:
            means[0] = f"**{means[0]}**"
        differences = ["-", "-"]
        if (method, lr) != baseline:
            differences = [difference(found, results[baseline], seeds) for seeds in (REPORTED, (*TUNING, *REPORTED))]
        step = f"{cost[method]:.2f}" if method in cost else "-"
        lines.append([method, f"{lr:g}", *means, *differences, str(failed[method, lr]), step])
    return markdown(lines)


def difference(found: Mapping[int, float], base: Mapping[int, float], seeds: Sequence[int]) -> str:
    """Of pairs with the same seed; "-" where one is missing."""
    if not found.keys() & base.keys() >= set(seeds):
        return "-"
    return f"{mean_interval([found[seed] - base[seed] for seed in seeds]):+.1f}"


def mean_of(found: dict[int, float], seeds: Sequence[int]) -> str:
    """The mean over the seeds; how many there are, where some are missing."""
    values = [found[seed] for seed in seeds if seed in found]
    if not values:
        return "-"
    return f"{sum(values) / len(values):.1f}" + (f" (n = {len(values)})" if len(values) < len(seeds) else "")


def best_rates(results: Results) -> dict[str, float]:
    """Method -> the learning rate with the highest mean of the tuning seeds."""
    tuned: dict[str, dict[float, float]] = {}
    for (method, lr), found in results.items():
        if found.keys() >= set(TUNING):
            tuned.setdefault(method, {})[lr] = sum(found[seed] for seed in TUNING)
    return {method: max(rates, key=lambda lr: rates[lr]) for method, rates in tuned.items()}


ENDS = (
    "What these runs were at their end, as far as it was recorded. *ESS-ratio*: the effective share of a completion's tokens, "
    "(sum w)^2 / (n sum w^2) of their weights, 1 where these are equal:"
)
ENDS_SHOWN = {
    "gradient's norm": ("grad_norm", ".2f"),
    "ESS-ratio": ("ess_ratio", ".2f"),
    "tokens a completion": ("mean_length", ".0f"),
    "passes of scoring": ("forward_equivalents", ".2f"),
    "CPU s a run": ("cpu_s", ".0f"),
}
"""Heading -> column and digits."""


def ends_table(rows: Sequence[Row]) -> str:
    """A line for each method and rate of a variant whose runs have recorded more than their accuracy: means over its runs."""
    found: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        if not math.isnan(row.cpu_s):
            found.setdefault((row.method, row.lr), []).append(row)
    lines = [["method", "rate", "runs", *ENDS_SHOWN]]
    for (method, lr), own in sorted(found.items(), key=lambda item: (item[0][0] != BASELINE, item[0])):
        lines.append([method, f"{lr:g}", str(len(own)), *(shown(own, *column) for column in ENDS_SHOWN.values())])
    return markdown(lines) if found else ""


def shown(rows: Iterable[Row], column: str, digits: str) -> str:
    recorded = [value for row in rows if not math.isnan(value := getattr(row, column))]
    return f"{sum(recorded) / len(recorded):{digits}}" if recorded else "-"


def checklist(rows: Sequence[Row]) -> str:
    """The items of the survey arXiv 2604.09459, appendix C, as pages of `task=report` have them."""
    methods = sorted({row.method for row in rows} - {BASELINE})
    controls = [name for name in methods if name in ("random", "shuffled", "inverted")]
    told = [name for name in methods if name in TOLD]
    recorded = [row for row in rows if not math.isnan(row.cpu_s)]
    others = sum(row.seconds for row in rows if math.isnan(row.cpu_s)) / 3600
    spent = f"{sum(row.cpu_s for row in recorded) / 3600:.1f} hours of {len(recorded)} runs"
    lengths = sorted({f"{row.mean_length:.0f}" for row in recorded if not math.isnan(row.mean_length)}, key=int)
    return markdown(
        [
            ["item", "here"],
            [
                "base model and size",
                "built-in policies: 0.34 M parameters (`asides`, `one_step`), 0.9 M (`graph`, `graph_hints`)",
            ],
            ["training data, size, filters", "generated without end by seed; no filters"],
            [
                "granularity",
                "token; completion (GRPO, `aer`, `curriculum`); "
                "step (`vineppo`, `information_gain`, `capo`, `acpo`, `acpo_add`, `istar`, `shear`)",
            ],
            ["family of the method", "docs/methods.md has that of each"],
            ["baseline without credit, same base model", f"`{BASELINE}`"],
            ["compute", "equal numbers of updates, not equal compute; processor time of a step: last column on `asides`"],
            ["benchmarks and splits", "built-in tasks; held-out problems on all but `one_step`, which has trained sums"],
            ["metric", "sampled accuracy at temperature 1 after the last update"],
            ["processor time in all", f"{spent}; of {len(rows) - len(recorded)} others {others:.0f} hours of wall time alone"],
            [
                "mean length of completions, tokens",
                f"{lengths[0]} to {lengths[-1]}, where recorded" if lengths else "not recorded",
            ],
            ["ablation of the credit", ", ".join(f"`{name}`" for name in controls) + "; told the truth: " + ", ".join(told)],
            ["spread", "Student's t 95 % intervals over pairs by seed"],
            ["cost of credit, forward passes of the batch", "[lab_methods](../lab_methods/README.md), column `passes`"],
            ["shortest and longest of a batch, tokens", "not recorded in `runs.csv`"],
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", nargs="?", help="MLflow's URI, whose runs are added to runs.csv")
    parser.add_argument("sweeps", nargs="?", default="families", help="what the names of their sweeps begin with")
    options = parser.parse_args()
    path = HERE / "runs.csv"
    if options.store:
        rows = {row.run_id: row for row in (*earlier_rows(), *read_csv(path), *read_store(options.store, options.sweeps))}
        write_csv(path, sorted(rows.values(), key=lambda row: row[:5]))  # of equal settings those read last come last
    cost = json.loads((HERE / "cost.json").read_text(encoding="utf-8"))
    parts = []
    for variant in TASKS:
        if not (own := [row for row in read_csv(path) if row.variant == variant]):
            continue
        parts += [f"## On `{variant}`", "", table(own, cost if variant == "asides" else {}), ""]
        if ends := ends_table(own):
            parts += [ENDS, "", ends, ""]
    parts += ["## Checklist", "", checklist(read_csv(path)), ""]
    fill(HERE / "README.md", "\n".join(parts).rstrip())


if __name__ == "__main__":
    main()
