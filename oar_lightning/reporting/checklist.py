"""What a paper on credit assignment should state, item by item: the checklist of the survey arXiv 2604.09459, appendix C."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from oar_lightning.reporting.bands import last_tenth
from oar_lightning.reporting.runs import Curves
from oar_lightning.reporting.settings import NOT_RECORDED, distinct, evaluation, is_trained, scorer, training, updates
from oar_lightning.reporting.statistics import LEAST
from oar_lightning.reporting.study import Arm, Study, is_uniform

TOKEN, SEGMENT = "token", "segment"
OWN_OUTCOME = "information-theoretic: dependence of the model's own answer on the token"
CHANCE = "control"
GAIN = "information-theoretic: gain in the answer's likelihood"
HINDSIGHT, IMPLICIT = "hindsight: likelihood with and without a hint", "learned critic: implicit process rewards"
HEURISTIC = "heuristic of entropies, probabilities or ids"
FAMILIES = {
    "uniform": ("completion", "none: the group's outcome alone"),
    **dict.fromkeys(["oar_g", "oar_p", "oar_p_approximate", "reference_oar_g", "reference_oar_p"], (TOKEN, OWN_OUTCOME)),
    "oar_p_steps": (SEGMENT, "information-theoretic: dependence of the model's own answer on the step"),
    **dict.fromkeys(["random", "shuffled", "inverted", "position"], (TOKEN, CHANCE)),
    "oracle": (TOKEN, "truth, which the task knows"),
    "oracle_signed": (TOKEN, "truth, which the task knows"),
    **dict.fromkeys(["total_effect", "total_effect_fast"], (TOKEN, "counterfactual: other tokens in a token's place")),
    "monte_carlo": (SEGMENT, "Monte Carlo"),
    "turning_point": (TOKEN, "Monte Carlo: greedy continuations"),
    **dict.fromkeys(["information_gain", "spae", "min_form"], (SEGMENT, GAIN)),
    "capo": (SEGMENT, "critic: the task's own rules, or an LLM"),
    "prime": (TOKEN, IMPLICIT),
    "istar": (SEGMENT, IMPLICIT),
    "spro": (TOKEN, "implicit process rewards, of the policy itself"),
    **dict.fromkeys(["rlsd", "serl", "contrast"], (TOKEN, HINDSIGHT)),
    "anchor_states": (TOKEN, "Monte Carlo: the group's own completions"),
    "otb": (TOKEN, "baseline of least variance"),
    "shear": (TOKEN, "distance of hidden states between outcomes"),
    **dict.fromkeys(
        ["entropy", "entropy_advantage", "gtpo", "steer", "ucas", "ktae", "hicra", "probability", "action_mask"],
        (TOKEN, HEURISTIC),
    ),
}
"""Scorer -> what gets credit of its own, and by which kind of estimate."""

CONTROLS = [name for name, (_, family) in FAMILIES.items() if family == CHANCE]


def checklist(study: Study, curves: Curves) -> list[list[str]]:
    """The fourteen items with what this study says of each; what no run recorded is called so."""
    scorers = [scorer(arm.runs[0]) for arm in study.arms]
    of_scorer = [FAMILIES.get(name, (NOT_RECORDED, NOT_RECORDED)) for name in scorers]
    sizes = [len(arm.runs) for arm in study.arms]
    seeds = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    return [
        ["item", "here"],
        ["base model and size", _both(distinct(study.runs, lambda r: r.params.get("policy.name")), _size(study))],
        ["training data, size, filters", f"{_data(study)}; {distinct(study.runs, training)}; {_filters(study)}"],
        ["granularity", _by(scorers, [kind for kind, _ in of_scorer])],
        ["family of the method", _by(scorers, [family for _, family in of_scorer])],
        ["baseline without credit, same base model", _names(arm.label for arm in study.arms if is_uniform(study, arm))],
        ["compute", _compute(study)],
        ["benchmarks and splits", distinct(study.runs, evaluation)],
        ["metric", f"`{study.metric}` of the policy after its last update"],
        ["processor time in all", hours(study)],
        ["mean length of completions, tokens", _by_arm(study, curves, "completions/mean_length", ".0f")],
        ["ablation of the credit", _names(arm.label for arm in study.arms if scorer(arm.runs[0]) in CONTROLS)],
        ["spread", f"{seeds} seeds an arm; {intervals(sizes)}"],
        ["cost of credit, forward passes of the batch", _by_arm(study, curves, "credit/forward_equivalents", ".2f")],
        ["shortest and longest of a batch, tokens", _lengths(study, curves)],
    ]


def intervals(sizes: Sequence[int]) -> str:
    """Where arms of so many runs have intervals."""
    if max(sizes) < LEAST:
        return f"no intervals: they need at least {LEAST}"
    return "95 % intervals over seeds" + (f", where there are at least {LEAST}" if min(sizes) < LEAST else "")


def hours(study: Study) -> str:
    """Hours of all runs, those that do not count included."""
    cpu = [run.metrics.get("time/total_cpu_s") for run in study.all_runs]
    recorded = [seconds for seconds in cpu if seconds is not None]
    lacking = "" if len(recorded) == len(cpu) else f" of {len(recorded)} of {len(cpu)} runs"
    spent = f"{sum(recorded) / 3600:.2f} CPU-hours{lacking}" if recorded else f"CPU-hours: {NOT_RECORDED}"
    return f"{spent}; {sum(run.duration_s for run in study.all_runs) / 3600:.2f} hours of wall time"


def _compute(study: Study) -> str:
    counts = {updates(run) for run in study.runs if is_trained(run)}
    if not counts:
        return "no training: policies were evaluated"
    if counts == {None}:
        return NOT_RECORDED
    equal = "equal numbers of updates, not equal compute" if len(counts) == 1 else "numbers of updates differ"
    return f"{equal}; processor time and passes of scoring, where they were recorded: in the table of results"


def _both(first: str, second: str) -> str:
    return f"{first}; {second} parameters"


def _size(study: Study) -> str:
    return distinct(study.runs, lambda run: f"{int(run.tags['parameters']):,}" if "parameters" in run.tags else None)


def _data(study: Study) -> str:
    return distinct(study.runs, lambda run: run.params.get("data.name"))


def _filters(study: Study) -> str:
    longest = distinct(study.runs, lambda run: run.params.get("data.max_prompt_tokens"))
    cleaned = distinct(study.runs, lambda run: run.params.get("data.decontaminate"))
    cleaning = {"False": "no", "True": "yes"}.get(cleaned, cleaned)
    return f"longest prompt, tokens: {'any' if longest == 'None' else longest}; decontaminated: {cleaning}"


def _names(labels: Iterable[str]) -> str:
    return ", ".join(f"`{label}`" for label in labels) or "none"


def _by(names: Sequence[str], values: Sequence[str]) -> str:
    """Values with the names that have them; a value that all have alone."""
    pairs = dict(zip(names, values, strict=True))
    if len(set(values)) == 1:
        return values[0]
    return "; ".join(f"{value} ({', '.join(n for n, v in pairs.items() if v == value)})" for value in dict.fromkeys(values))


def _mean(arm: Arm, curves: Curves, metric: str) -> float | None:
    found = [end for run in arm.runs if (end := last_tenth(run, curves, metric)) is not None]
    return float(np.mean(found)) if found else None


def _by_arm(study: Study, curves: Curves, metric: str, digits: str) -> str:
    return _range([_mean(arm, curves, metric) for arm in study.arms], lambda value: f"{value:{digits}}")


def _lengths(study: Study, curves: Curves) -> str:
    ends = [_by_arm(study, curves, f"completions/{end}_length", ".0f") for end in ("min", "max")]
    return NOT_RECORDED if NOT_RECORDED in ends else f"shortest {ends[0]}, longest {ends[1]}; quantiles: {NOT_RECORDED}"


def _range(values: Sequence[float | None], shown: Callable[[float], str]) -> str:
    recorded = [value for value in values if value is not None]
    if not recorded:
        return NOT_RECORDED
    low, high = shown(min(recorded)), shown(max(recorded))
    lacking = "" if len(recorded) == len(values) else f" ({len(values) - len(recorded)} arms: {NOT_RECORDED})"
    return (low if low == high else f"{low} to {high}") + lacking
