"""Open questions of the OAR paper, asked in the credit lab: which fill, does the own answer stand for the reward, direct or
total effect, and which probes speak of completions without a marked answer?

python reports/lab_questions/measure.py --lab asides    # the lab of a variant -> asides.json.gz (some minutes)
python reports/lab_questions/measure.py                 # the tables of README.md from the files beside it
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
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

MORE_PROBLEMS = ["lab.problems=32", "lab.samples=2"]
FORM_SETTINGS = [*PARTS, *MORE_PROBLEMS, *without("late", "early", "improbability", "information_gain", "oracle")]
FORM_ROWS = ["oar_p", "oar_g", "total_effect", "total_effect_fast", "entropy", "is_digit", "random"]


def unmarked(name: str, scorer: str, last: int, *of_scorer: str) -> list[str]:
    """The overrides that add a scorer that is not told the answer: the `last` tokens stand in its place."""
    own = f"lab.estimators.{name}.scorer"
    return [
        f"+{own}._target_=reports.lab_questions.unmarked.Unmarked",
        f"+{own}.last={last}",
        f"+scorer@{own}.inner={scorer}",
        *(word.replace("@", f"@{own}.inner.") if "@" in word else f"{own}.inner.{word}" for word in of_scorer),
    ]


def marked(name: str, scorer: str, *of_scorer: str) -> list[str]:
    """The overrides that add a scorer that knows the answer."""
    own = f"lab.estimators.{name}.scorer"
    return [
        f"+scorer@{own}={scorer}",
        *(word.replace("@", f"@{own}.") if "@" in word else f"{own}.{word}" for word in of_scorer),
    ]


HIDDEN = ("oar_p", "_target_=reports.lab_questions.unmarked.OarPHidden")
TOKENS_ALONE = ("scorer/segments@segments=low_probability", "segments.threshold=0.98", "segments.every=1")
GOLD = ("information_gain", *TOKENS_ALONE)
VALUE = ("monte_carlo", *TOKENS_ALONE, "samples=4", "most_segments=null", "seed=7")
UNMARKED_SETTINGS = [
    *PARTS,
    *without("late", "early", "improbability", "oar_g", "information_gain", "total_effect", "total_effect_fast", "oracle"),
    *unmarked("oar_p_last_1", "oar_p", 1),
    *unmarked("oar_p_last_8", "oar_p", 8),
    *marked("hidden", *HIDDEN),
    *unmarked("hidden_last_1", *HIDDEN[:1], 1, *HIDDEN[1:]),
    *unmarked("hidden_last_8", *HIDDEN[:1], 8, *HIDDEN[1:]),
    *marked("gold", *GOLD),
    *unmarked("gold_unmarked", GOLD[0], 1, *GOLD[1:]),
    *unmarked("value_unmarked", VALUE[0], 1, *VALUE[1:]),
]

FILL_ROWS = [*(f"oar_p_{f}" for f in FILLS), *(f"total_effect_{f}" for f in FILLS), "entropy", "is_digit", "random"]
FILL_MEASURES = ("auroc", "auroc_free", "spearman_free")
PROXY_ROWS = ["gain_own", "gain_gold", "oar_g", "oar_p_pad", "random"]
PROXY_MEASURES = ("spearman_free", "direction_free")


def run_lab(variant: str, *more: str) -> None:
    """The lab of a variant, and what the tables need of it into a file."""
    found = lab_results(*VARIANTS[variant], *SETTINGS, *more)
    kept = {
        "completions": found["completions"],
        "tokens": found["tokens"],
        "truths": found["truths"],
        "measures": {key: m for key, m in found["measures"].items() if key.startswith(f"{TRUTH}.")},
    }
    (HERE / f"{variant}.json.gz").write_bytes(gzip.compress(json.dumps(kept).encode(), mtime=0))


def cell(values: Sequence[float | None], problem: Sequence[int], rows: Sequence[bool]) -> str:
    """The mean over the chosen completions, with its interval over problems."""
    chosen = [math.nan if value is None or not row else value for value, row in zip(values, rows, strict=True)]
    found = mean_over(chosen, problem)
    if math.isnan(found.mean):
        return "-"
    return f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]"


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


def page() -> str:
    parts = []
    for variant in VARIANTS:
        path = HERE / f"{variant}.json.gz"
        if not path.exists():
            continue
        results = json.loads(gzip.decompress(path.read_bytes()))
        titles = {measure: results["measures"][f"{TRUTH}.{measure}"]["title"] for measure in (*FILL_MEASURES, *PROXY_MEASURES)}
        truth = results["truths"][TRUTH]
        right = sum(bool(c["correct"]) for c in results["completions"])
        parts += [
            f"## {variant}",
            f"{len(results['completions'])} completions, {right} right; {results['tokens']['free']} free tokens, "
            f"{truth['decisive']} of them decisive.",
            "",
            table(results, FILL_ROWS, [(titles[m], m, None) for m in FILL_MEASURES]),
            "",
            table(
                results,
                PROXY_ROWS,
                [
                    (f"{titles[m]}, {word}", m, only)
                    for m in PROXY_MEASURES
                    for word, only in (("right", True), ("wrong", False))
                ],
            ),
            "",
        ]
    return "\n".join(parts)


def main() -> None:
    run_asked(__doc__, VARIANTS, run_lab)
    fill(HERE / "README.md", page())


if __name__ == "__main__":
    main()
