"""Is a wrong completion the further from right ones, the less often its continuations succeed? The tables of README.md.

python reports/shear/measure.py --lab chain   # completions, distances and values of a task -> chain.json (some minutes)
python reports/shear/measure.py               # the tables alone
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.lab.page import TOKENS
from oar_lightning.lab.study import estimator, run_asked, without

HERE = Path(__file__).parent
TASKS: dict[str, list[str]] = {"chain": [], "asides": ["+variant=asides"], "graph": ["+variant=graph"]}
"""Those that can be asked for; the page has those that were."""

LENGTH = 8
"""Tokens of a segment, between whose ends values differ; a span of SHEAR has at least so many."""
OWN_LIST = (
    *("random", "late", "early", "entropy", "improbability", "oracle", "oar_g", "oar_p", "information_gain"),
    *("total_effect", "total_effect_fast"),
)
REGION = {"region": "reasoning"}
"""Conclusion and answer, which differ between the outcomes by construction, have no span."""
DISTANCES = {"mmd": "discrepancy (the default)", "wasserstein": "Wasserstein-1"}
SETTINGS = [
    *without(*OWN_LIST),
    *(
        w
        for name in DISTANCES
        for w in estimator(name, "shear", "direct", of_scorer={**REGION, "distance": name}, of_gate=REGION)
    ),
    *estimator("value", "monte_carlo", "signed", of_scorer={"samples": "16", "most_segments": "null"}, of_gate=REGION),
    "scorer/segments@lab.estimators.value.scorer.segments=fixed_length",
    f"lab.estimators.value.scorer.segments.length={LENGTH}",
    *("lab.problems=32", "lab.samples=8", "lab.continuations=0", "lab.faithfulness=null", "lab.stability=null"),
    *("lab.gradients=null", "logger=none", "num_threads=1"),
]
BINS = 10
DRAWS = 2000


class Text(NamedTuple):
    """A wrong completion of a group that has a right one; an entry for each of its segments."""

    problem: int
    place: list[float]
    """Of the segment's middle, in the reasoning: 0 to 1."""
    value: list[float]
    """Share of the continuations from the segment's end that are right."""
    mmd: list[float]
    wasserstein: list[float]


def text_of(row: dict[str, Any]) -> Text:
    """What a row of the lab's token file says by segments.

    The values' differences of all segments sum to the outcome less the prompt's value, so that the outcome less those of the
    later segments is the value at a segment's end.
    """
    inside = np.flatnonzero(row["reasoning"])
    parts = [inside[start : start + LENGTH] for start in range(0, len(inside), LENGTH)]

    def means(name: str) -> list[float]:
        scores = np.array(row["estimators"][name]["score"], dtype=float)
        return [float(scores[part].mean()) for part in parts]

    gains = np.array(means("value"))
    value = float(row["correct"]) - (gains[::-1].cumsum()[::-1] - gains)
    place = [float(part.mean() - inside[0]) / max(1, len(inside) - 1) for part in parts]
    return Text(row["problem"], place, [round(float(v), 6) for v in value], means("mmd"), means("wasserstein"))


def run_lab(task: str, *more: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "oar_lightning", "task=lab", *SETTINGS, *TASKS[task], *more]
        subprocess.run([*command, f"lab.report={folder}/lab"], check=True)
        with gzip.open(Path(folder) / "lab" / TOKENS, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
    right = {row["problem"] for row in rows if row["correct"]}
    texts = [text_of(row) for row in rows if not row["correct"] and row["problem"] in right and any(row["reasoning"])]
    found = {"completions": len(rows), "texts": [text._asdict() for text in texts]}
    (HERE / f"{task}.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    return float(spearmanr(first, second).statistic) if len(set(first)) > 1 and len(set(second)) > 1 else float("nan")


def pooled(texts: Sequence[Text], distance: str) -> float:
    """Over all segments."""
    return correlation([d for text in texts for d in getattr(text, distance)], [v for text in texts for v in text.value])


def of_changes(texts: Sequence[Text], distance: str) -> float:
    """Over all pairs of a segment and the next one: changes of distance against changes of value."""

    def changes(key: str) -> list[float]:
        return [float(change) for text in texts for change in np.diff(getattr(text, key))]

    return correlation(changes(distance), changes("value"))


def by_place(texts: Sequence[Text], distance: str) -> float:
    """Over tenths of the reasoning: the mean distance in each against the mean value."""
    tenth = np.array([min(BINS - 1, int(BINS * place)) for text in texts for place in text.place])
    columns = [np.array([x for text in texts for x in getattr(text, key)]) for key in (distance, "value")]
    used = sorted(set(tenth.tolist()))
    first, second = ([float(column[tenth == one].mean()) for one in used] for column in columns)
    return correlation(first, second)


def within_place(texts: Sequence[Text], distance: str) -> float:
    """As `pooled`, of what distance and value differ from their means in the same tenth of the reasoning."""
    tenth = np.array([min(BINS - 1, int(BINS * place)) for text in texts for place in text.place])

    def centred(key: str) -> NDArray[np.float64]:
        column = np.array([x for text in texts for x in getattr(text, key)])
        return column - np.array([column[tenth == one].mean() for one in tenth])

    return correlation(centred(distance).tolist(), centred("value").tolist())


MEASURES: dict[str, Callable[[Sequence[Text], str], float]] = {
    "means of tenths of the text": by_place,
    "segments": pooled,
    "segments, less the mean of their tenth": within_place,
    "changes between segments": of_changes,
}


def interval(texts: Sequence[Text], measure: Callable[[Sequence[Text], str], float], distance: str) -> str:
    """The correlation with its 95 % bootstrap interval over problems."""
    problems = sorted({text.problem for text in texts})
    by_problem = {problem: [text for text in texts if text.problem == problem] for problem in problems}
    rng = np.random.default_rng(0)
    drawn = [
        measure([text for i in rng.integers(len(problems), size=len(problems)) for text in by_problem[problems[i]]], distance)
        for _ in range(DRAWS)
    ]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return f"{measure(texts, distance):+.2f} [{low:+.2f}, {high:+.2f}]"


def table(found: Iterable[tuple[str, dict[str, Any]]]) -> str:
    lines = [["task", "wrong completions (problems)", "distance", *MEASURES]]
    for task, own in found:
        texts = [Text(**text) for text in own["texts"]]
        count = f"{len(texts)} ({len({text.problem for text in texts})})"
        for distance, name in DISTANCES.items():
            lines.append([f"`{task}`", count, name, *(interval(texts, measure, distance) for measure in MEASURES.values())])
    return markdown(lines)


def main() -> None:
    run_asked(__doc__, TASKS, run_lab)
    kept = [(task, HERE / f"{task}.json") for task in TASKS]
    fill(
        HERE / "README.md", table((task, json.loads(path.read_text(encoding="utf-8"))) for task, path in kept if path.exists())
    )


if __name__ == "__main__":
    main()
