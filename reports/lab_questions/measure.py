"""Open questions of the OAR paper, asked in the credit lab: which fill, does the own answer stand for the reward, direct or
total effect, and which probes speak of completions without a marked answer?

python reports/lab_questions/measure.py --lab asides    # the lab of a variant -> asides.json.gz (some minutes)
python reports/lab_questions/measure.py                 # the tables of README.md from the files beside it
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.lab.comparison import mean_over
from oar_lightning.lab.study import estimator, lab_results, run_asked, without

HERE = Path(__file__).parent
VARIANTS = {"chain": (), "asides": ("+variant=asides",)}
FOUR_FORMS = ("+variant=asides", "policy.name=outputs/four_forms", "data.chain.asides=1", "data.chain.tell_form=true")
FORMS = {
    f"{'repeat' if restate == 'true' else 'omit'}_{'last' if last == 'true' else 'between'}": (
        *FOUR_FORMS,
        f"data.chain.restate={restate}",
        f"data.chain.asides_last={last}",
    )
    for last in ("false", "true")
    for restate in ("true", "false")
}
SWITCHES = [
    ("repeat_between", "omit_between"),
    ("repeat_last", "omit_last"),
    ("repeat_last", "repeat_between"),
    ("omit_last", "omit_between"),
]
"""Forms that differ in one thing, the first of it switched on."""
UNMARKED = {"chain_unmarked": VARIANTS["chain"], "repeat_between_unmarked": FORMS["repeat_between"]}
FILLS = ("pad", "mean_embedding", "random_token", "model_sample")
TRUTH = "monte_carlo"


ESTIMATORS = [
    *(word for f in FILLS for word in estimator(f"oar_p_{f}", "oar_p", of_scorer={"fill": f})),
    *(word for f in FILLS for word in estimator(f"total_effect_{f}", "total_effect", of_scorer={"fill": f, "freedom": "none"})),
    *estimator("gain_own", "information_gain", of_scorer={"mode": "own"}),
    *estimator("gain_gold", "information_gain", of_scorer={"mode": "gold"}),
]
LEFT_OUT = ("late", "early", "improbability", "oar_p", "information_gain", "total_effect", "total_effect_fast", "oracle")
PARTS = ["lab.baseline=random", "lab.faithfulness=null", "lab.stability=null", "lab.gradients=null"]
SETTINGS = [*PARTS, *without(*LEFT_OUT), *ESTIMATORS]

FILL_ROWS = [*(f"oar_p_{f}" for f in FILLS), *(f"total_effect_{f}" for f in FILLS), "entropy", "is_digit", "random"]
MEASURES = ("auroc", "auroc_free", "spearman_free")
PROXY_ROWS = ["gain_own", "gain_gold", "oar_g", "oar_p_pad", "random"]
PROXY_MEASURES = ("spearman_free", "direction_free")

MORE_PROBLEMS = ["lab.problems=32", "lab.samples=2"]
FORM_SETTINGS = [
    *PARTS,
    *MORE_PROBLEMS,
    *without("late", "early", "improbability", "information_gain", "oracle"),
    *(f"lab.estimators.{name}.scorer.freedom=none" for name in ("total_effect", "total_effect_fast")),
]
FORM_ROWS = ["oar_p", "oar_g", "total_effect", "total_effect_fast", "entropy", "is_digit", "random"]


def added(name: str, scorer: str, *settings: str, last: int | None = None) -> list[str]:
    """The overrides that add a scorer. With `last` it is not told the answer: so many tokens of the end stand in its place."""
    own = f"lab.estimators.{name}.scorer"
    around = [] if last is None else [f"+{own}._target_=reports.lab_questions.unmarked.Unmarked", f"+{own}.last={last}"]
    inner = own if last is None else f"{own}.inner"
    of_scorer = [word.replace("@", f"@{inner}.") if "@" in word else f"{inner}.{word}" for word in settings]
    return [*around, f"+scorer@{inner}={scorer}", *of_scorer]


HIDDEN = ("_target_=reports.lab_questions.unmarked.OarPHidden",)
FREE_TOKENS = ("scorer/segments@segments=low_probability", "segments.threshold=0.98", "segments.every=1")
VALUES = (*FREE_TOKENS, "samples=4", "most_segments=null", "forced_above=0.98", "seed=7")
UNMARKED_SETTINGS = [
    *PARTS,
    *MORE_PROBLEMS,
    *without("late", "early", "improbability", "oar_g", "information_gain", "total_effect", "total_effect_fast", "oracle"),
    *added("hidden", "oar_p", *HIDDEN),
    *added("gold", "information_gain", *FREE_TOKENS),
    *(word for last in (1, 8) for word in added(f"oar_p_last_{last}", "oar_p", last=last)),
    *(word for last in (1, 8) for word in added(f"hidden_last_{last}", "oar_p", *HIDDEN, last=last)),
    *added("gold_unmarked", "information_gain", *FREE_TOKENS, last=1),
    *added("value_unmarked", "monte_carlo", *VALUES, last=1),
]
MARKED_ROWS = ["oar_p", "hidden", "gold"]
UNMARKED_ROWS = [f"{name}_last_{last}" for name in ("oar_p", "hidden") for last in (1, 8)] + ["gold_unmarked", "value_unmarked"]
CONTROL_ROWS = ["entropy", "is_digit", "random"]

LABS = {
    **{name: (*overrides, *SETTINGS) for name, overrides in VARIANTS.items()},
    **{name: (*overrides, *FORM_SETTINGS) for name, overrides in FORMS.items()},
    **{name: (*overrides, *UNMARKED_SETTINGS) for name, overrides in UNMARKED.items()},
}
"""Name -> the overrides of a lab of this study."""


def run_lab(name: str, *more: str) -> None:
    """A lab of the study, and what the tables need of it into a file."""
    found = lab_results(*LABS[name], *more)
    kept = {
        "completions": found["completions"],
        "tokens": found["tokens"],
        "truths": found["truths"],
        "forms": [form(text) for text in found["texts"]],
        "measures": {key: m for key, m in found["measures"].items() if key.startswith(f"{TRUTH}.")},
    }
    (HERE / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(kept).encode(), mtime=0))


def form(text: str) -> str:
    """The form that a solution is written in; `other` where it is none of the four."""
    lines = text.splitlines()
    steps = [i for i, line in enumerate(lines) if "=" in line]
    repeated = {bool(re.search(r"\d+[+-]", lines[i])) for i in steps[1:]}
    last = steps == list(range(len(steps)))
    between = steps == list(range(0, 2 * len(steps), 2))
    if len(repeated) != 1 or last == between:
        return "other"
    return f"{'repeat' if repeated.pop() else 'omit'}_{'last' if last else 'between'}"


def cell(values: Sequence[float | None], problem: Sequence[int], rows: Sequence[bool]) -> str:
    """The mean over the chosen completions, with its interval over problems."""
    chosen = [math.nan if value is None or not row else value for value, row in zip(values, rows, strict=True)]
    found = mean_over(chosen, problem)
    if math.isnan(found.mean):
        return "-"
    return f"{found:.2f}"


def table(results: Mapping[str, Any], names: Sequence[str], columns: Sequence[tuple[str, str, bool | None]]) -> str:
    """A line for each estimator; a column is (heading, measure, only right or only wrong completions or None for all)."""
    problem = [c["problem"] for c in results["completions"]]
    correct = [c["correct"] for c in results["completions"]]
    lines = [["estimator", *(heading for heading, *_ in columns)]]
    for name in names:
        cells = []
        for _, measure, only in columns:
            rows = [only is None or c is only for c in correct]
            cells.append(cell(results["measures"][f"{TRUTH}.{measure}"]["values"][name], problem, rows))
        lines.append([name, *cells])
    return markdown(lines)


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))
    return found


def size(results: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Completions, right ones, free tokens, decisive ones."""
    right = sum(bool(c["correct"]) for c in results["completions"])
    return len(results["completions"]), right, results["tokens"]["free"], results["truths"][TRUTH]["decisive"]


def sentence(results: Mapping[str, Any]) -> str:
    completions, right, free, decisive = size(results)
    return f"{completions} completions, {right} right; {free} free tokens, {decisive} of them decisive."


def title(results: Mapping[str, Any], measure: str) -> str:
    return str(results["measures"][f"{TRUTH}.{measure}"]["title"])


def of_fills(name: str) -> list[str]:
    """The tables of the first two questions."""
    results = read(name)
    halves = [
        (f"{title(results, m)}, {word}", m, only) for m in PROXY_MEASURES for word, only in (("right", True), ("wrong", False))
    ]
    fills = table(results, FILL_ROWS, [(title(results, m), m, None) for m in MEASURES])
    heading = f"## Fills, and own answer or reward: {name}"
    return [heading, sentence(results), "", fills, "", table(results, PROXY_ROWS, halves), ""]


def of_forms() -> list[str]:
    """One policy, four forms of its solutions: a table for each measure."""
    found = {name: read(name) for name in FORMS}
    columns = [
        "completions",
        "in this form",
        "right",
        "free tokens",
        "decisive",
        "reliability of sizes",
        "one half by the other",
    ]
    sizes = [["form", *columns]]
    for name, results in found.items():
        completions, *rest = size(results)
        sure = results["truths"][TRUTH]["reliability"]
        halves = [f"{sure[key]:.2f}" for key in ("size", "half_auroc")]
        sizes.append([name, str(completions), str(results["forms"].count(name)), *map(str, rest), *halves])
    lines = ["## Direct against total effect: one policy, four forms", "", markdown(sizes), ""]
    for measure in MEASURES:
        rows = [[title(found["repeat_between"], measure), *found]]
        rows += [[name, *(of_estimator(results, measure, name) for results in found.values())] for name in FORM_ROWS]
        for other in ("oar_p", "is_digit"):
            cells = [difference(results, measure, "total_effect", other) for results in found.values()]
            rows.append([f"total_effect - {other}", *cells])
        lines += [markdown(rows), ""]
    names = FORM_ROWS[:-1]
    rows = [[f"{title(found['repeat_between'], 'auroc_free')}, difference of forms", *names]]
    for one, other in SWITCHES:
        rows.append([f"{one} - {other}", *(switched(found[one], found[other], "auroc_free", name) for name in names)])
    return [*lines, markdown(rows), ""]


def switched(one: Mapping[str, Any], other: Mapping[str, Any], measure: str, name: str) -> str:
    """The mean over problems of an estimator's measure in one form minus that in another form."""
    means = [by_problem(results, measure, name) for results in (one, other)]
    both = sorted(means[0].keys() & means[1].keys())
    return cell([means[0][p] - means[1][p] for p in both], both, [True] * len(both))


def by_problem(results: Mapping[str, Any], measure: str, name: str) -> dict[int, float]:
    """An estimator's measure of each problem: the mean over those of its completions in which it is defined."""
    known: dict[int, list[float]] = {}
    for completion, value in zip(
        results["completions"], results["measures"][f"{TRUTH}.{measure}"]["values"][name], strict=True
    ):
        if value is not None:
            known.setdefault(completion["problem"], []).append(value)
    return {problem: mean(values) for problem, values in known.items()}


def of_estimator(results: Mapping[str, Any], measure: str, name: str) -> str:
    values = results["measures"][f"{TRUTH}.{measure}"]["values"][name]
    return cell(values, [c["problem"] for c in results["completions"]], [True] * len(values))


def difference(results: Mapping[str, Any], measure: str, one: str, other: str) -> str:
    """The mean of one estimator minus another one's, completion by completion."""
    values = results["measures"][f"{TRUTH}.{measure}"]["values"]
    pairs = zip(values[one], values[other], strict=True)
    differences = [None if a is None or b is None else a - b for a, b in pairs]
    return cell(differences, [c["problem"] for c in results["completions"]], [True] * len(differences))


def of_unmarked(name: str) -> list[str]:
    results = read(name)
    columns = [(title(results, m), m, None) for m in MEASURES]
    heading = f"## Without a marked answer: {name.removesuffix('_unmarked')}"
    return [heading, sentence(results), "", table(results, [*MARKED_ROWS, *UNMARKED_ROWS, *CONTROL_ROWS], columns), ""]


def page() -> str:
    """The tables of the labs that were run."""
    there = {name for name in LABS if (HERE / f"{name}.json.gz").exists()}
    lines = [line for name in VARIANTS if name in there for line in of_fills(name)]
    lines += of_forms() if {*FORMS} <= there else []
    lines += [line for name in UNMARKED if name in there for line in of_unmarked(name)]
    return "\n".join(lines)


def main() -> None:
    run_asked(__doc__, LABS, run_lab)
    fill(HERE / "README.md", page())


if __name__ == "__main__":
    main()
