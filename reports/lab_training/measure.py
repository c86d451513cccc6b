"""Does the lab predict training? What it measures of estimates of credit, against the points that training with them gained.

python reports/lab_training/measure.py --lab asides    # the lab of a variant -> asides.json (some minutes)
python reports/lab_training/measure.py                 # the tables of README.md, with the runs of `families`
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.lab.study import estimator, lab_results, run_asked, without

HERE = Path(__file__).parent
RUNS = HERE.parent / "families" / "runs.csv"
VARIANTS = ("asides", "one_step")
BASELINE = "grpo"
TUNING = (0, 1)
"""Seeds by which a method's learning rate is chosen."""

DRAWS = 20_000

SIGNED = {"combine": "multiply", "scale": "0.5", "normalize": "row", "clip": "1.0", "region": "reasoning"}


ABSOLUTE = {"threshold": "absolute", "tau": "0.5"}
ESTIMATORS = [
    *estimator("oracle_first_error", "oracle", "bilevel", of_gate=ABSOLUTE),
    *estimator("oracle_results", "oracle", "bilevel", of_scorer={"locate.which": "results"}, of_gate=ABSOLUTE),
    *estimator("shuffled", "shuffled", "bilevel"),
    *estimator("inverted", "inverted", "bilevel"),
    *estimator("eighty_twenty", "entropy", "select", of_scorer={"region": "response"}),
    *estimator("information_gain_signed", "information_gain", "signed", of_gate=SIGNED),
    *estimator("total_effect_gated", "total_effect_fast", "bilevel", of_gate=ABSOLUTE),
    *estimator("vineppo", "monte_carlo", "signed", of_scorer={"samples": "2"}),
    "scorer/segments@lab.estimators.vineppo.scorer.segments=task_steps",
]
"""Beside those of the default list."""

LEFT_OUT = ("late", "early", "improbability", "is_digit", "oracle", "information_gain", "total_effect", "total_effect_fast")
"""Of the default list: not trained with, or with another gate."""

SETTINGS = ["lab.baseline=random", "lab.faithfulness=null", "lab.stability=null", *without(*LEFT_OUT), *ESTIMATORS]

TRAINED = {
    BASELINE: BASELINE,
    "oar_g": "oar_g",
    "oar_p": "oar_p",
    "entropy": "entropy",
    "random": "random",
    "shuffled": "shuffled",
    "inverted": "inverted",
    "oracle": "oracle_first_error",
    "oracle_results": "oracle_results",
    "eighty_twenty": "eighty_twenty",
    "information_gain": "information_gain_signed",
    "total_effect_fast": "total_effect_gated",
    "vineppo": "vineppo",
}
"""Method of a run -> the lab's estimator."""


class Run(NamedTuple):
    method: str
    lr: float
    seed: int
    accuracy: float


def studied_runs(variant: str) -> Iterator[Run]:
    """The ended runs of a variant; accuracy in points. One that was given up has the accuracy of its last evaluation: to leave
    it out would flatter its method."""
    with RUNS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["variant"] == variant and row["method"] in TRAINED:
                yield Run(TRAINED[row["method"]], float(row["lr"]), int(row["seed"]), 100 * float(row["accuracy"]))


class Gain(NamedTuple):
    """Points gained over GRPO by seed, both at the rate that was best for the tuning seeds."""

    lr: float
    rates: int
    by_seed: dict[int, float]

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.by_seed.values())))


def best(runs: Sequence[Run]) -> tuple[float, int, dict[int, float]]:
    """The best learning rate, how many were tried, and the accuracies at the best by seed. The best is that of the tuning
    seeds, among the rates that were run with all of them, if there are any."""
    by_rate: dict[float, dict[int, float]] = {}
    for run in runs:
        by_rate.setdefault(run.lr, {})[run.seed] = run.accuracy
    tuned = {lr: np.mean([own[seed] for seed in TUNING]) for lr, own in by_rate.items() if own.keys() >= set(TUNING)}
    means = tuned or {lr: np.mean(list(own.values())) for lr, own in by_rate.items()}
    lr = max(means, key=lambda rate: means[rate])
    return lr, len(by_rate), by_rate[lr]


def gains(runs: Sequence[Run]) -> dict[str, Gain]:
    _, _, base = best([run for run in runs if run.method == BASELINE])
    found = {}
    for method in sorted({run.method for run in runs} - {BASELINE}):
        lr, rates, own = best([run for run in runs if run.method == method])
        found[method] = Gain(lr, rates, {seed: own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())})
    return found


def measured(variant: str) -> dict[str, dict[str, float]]:
    """Measure -> estimator -> mean, of the lab."""
    found: dict[str, dict[str, float]] = json.loads((HERE / f"{variant}.json").read_text(encoding="utf-8"))
    return found


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    return float(_correlations(np.asarray(first, dtype=float)[None], np.asarray(second, dtype=float)[None])[0])


FEWEST = 10
"""Resamples of fewer methods give intervals that hold the truth too seldom."""


class Prediction(NamedTuple):
    """`low` and `high` are NaN of fewer than `FEWEST` methods, and where most have one value of the measure: resamples then say
    little more than `rho`."""

    measure: str
    methods: int
    rho: float
    low: float
    high: float


def predict(measure: str, values: Mapping[str, float], gained: Mapping[str, Gain], seed: int = 0) -> Prediction | None:
    """Spearman's rank correlation of a measure with the gain over the methods, with a 95 % interval: methods and seeds are
    drawn with replacement, seeds once for all methods, which share them and GRPO's runs. None for fewer than five methods, no
    interval for fewer than `FEWEST`."""
    names = [name for name in gained if name in values]
    if len(names) < 5:
        return None
    measured = np.array([values[name] for name in names])
    rho = spearman(measured, [gained[name].mean for name in names])
    if len(names) < FEWEST or np.unique(measured, return_counts=True)[1].max() > len(names) / 2:
        return Prediction(measure, len(names), rho, math.nan, math.nan)
    seeds = sorted({own for name in names for own in gained[name].by_seed})
    gain = np.array([[gained[name].by_seed.get(own, math.nan) for name in names] for own in seeds])
    random = np.random.default_rng(seed)
    chosen, rows = random.integers(len(names), size=(DRAWS, len(names))), random.integers(len(seeds), size=(DRAWS, len(seeds)))
    means = _means(gain, rows, chosen)
    whole = ~np.isnan(means).any(1)
    drawn = _correlations(measured[chosen][whole], means[whole])
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return Prediction(measure, len(names), rho, float(low), float(high))


def _means(gain: NDArray[np.float64], rows: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """[draws, methods]: of each drawn method over the drawn seeds that it was run with; NaN where there is none."""
    drawn = gain[rows[:, :, None], chosen[:, None, :]]
    count = (~np.isnan(drawn)).sum(1)
    return np.divide(np.nansum(drawn, axis=1), count, out=np.full(count.shape, math.nan), where=count > 0)


def _correlations(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spearman's, of each row; NaN where all of a row are equal."""
    a, b = (rankdata(values, axis=1) for values in (first, second))
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    size = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    return np.divide((a * b).sum(1), size, out=np.full(len(size), math.nan), where=size > 1e-9)


def gain_table(gained: Mapping[str, Gain]) -> str:
    rows = sorted(gained.items(), key=lambda item: -item[1].mean)
    lines = [["estimator", "rate (of tried)", "seeds", "gain over GRPO, points"]]
    lines += [[n, f"{g.lr:g} ({g.rates})", str(len(g.by_seed)), f"{g.mean:+.1f}"] for n, g in rows]
    return markdown(lines)


def shown(found: Prediction | None) -> str:
    if found is None or math.isnan(found.rho):
        return "-"
    few = f"({found.methods} methods)" if found.methods < FEWEST else "(ties)"
    return f"{found.rho:+.2f} " + (few if math.isnan(found.low) else f"[{found.low:+.2f}, {found.high:+.2f}]")


ENDS = ("oracle_first_error", "eighty_twenty", "inverted")
"""Those that gained and lost most on `asides`: they alone may make a correlation."""


def without_ends(gained: Mapping[str, Gain]) -> dict[str, Gain]:
    return {name: gain for name, gain in gained.items() if name not in ENDS}


def prediction_table(values: Mapping[str, Mapping[str, float]], gained: Mapping[str, Gain]) -> str:
    lines = [["measure of the lab", "methods", "rank correlation with the gain [95 %]", f"without {', '.join(ENDS)}"]]
    found = [one for key, own in values.items() if (one := predict(key, own, gained))]
    order = sorted(found, key=lambda p: -p.rho if not math.isnan(p.rho) else math.inf)
    for one in order:
        rest = predict(one.measure, values[one.measure], without_ends(gained))
        lines.append([f"`{one.measure}`", str(one.methods), shown(one), shown(rest)])
    return markdown(lines)


def run_lab(variant: str, *more: str) -> None:
    """The lab of a variant, and its means by measure and estimator into a file."""
    found = lab_results(f"+variant={variant}", *SETTINGS, *more)
    (HERE / f"{variant}.json").write_text(json.dumps(means_of(found), indent=1) + "\n", encoding="utf-8")


def means_of(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Measure -> estimator -> mean, of a lab's results.json; of gradients too. What is undefined is left out."""
    means = {key: {n: i["mean"] for n, i in m["means"].items()} for key, m in results["measures"].items()}
    for name, own in results["gradients"].items():
        for key, interval in own.items():
            means.setdefault(f"gradients.{key}", {})[name] = interval["mean"]
    return {key: {n: v for n, v in sorted(own.items()) if v is not None} for key, own in sorted(means.items())}


def page() -> str:
    parts = []
    for variant in VARIANTS:
        if not (HERE / f"{variant}.json").exists():
            continue
        gained = gains(list(studied_runs(variant)))
        parts += [f"## {variant}", "", gain_table(gained), "", prediction_table(measured(variant), gained), ""]
    return "\n".join(parts)


def main() -> None:
    run_asked(__doc__, VARIANTS, run_lab)
    fill(HERE / "README.md", page())


if __name__ == "__main__":
    main()
