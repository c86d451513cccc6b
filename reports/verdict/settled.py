"""What the study of rules written before its runs (../settle) says."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from labels import named, rate
from leads import REPORTS, script

from oar_lightning.reporting.statistics import Interval, mean_interval

rules, records, tables, decoded, asked_of = (
    script("settle", name) for name in ("rules", "records", "tables", "greedy", "asked")
)
ROWS = records.read_csv(REPORTS / "settle" / "runs.csv")
Leads = Mapping[str, Any]
"""Name -> a lead that was asked, with its pairs and verdict (`AskedLead` of ../settle)."""
NOT_YET = "asked, not run"
LEVEL = 0.05
"""Of p, corrected for all comparisons that were asked."""


def settled(task: str) -> tuple[str, str]:
    """Its verdict and figures of OAR-G against GRPO."""
    ended = records.endpoint_runs(ROWS, task)
    base, own = (ended.get(arm, {}) for arm in rules.ENDPOINT)
    pairs = len(base.keys() & own.keys())
    if pairs < len(rules.ENDPOINT_SEEDS):
        return "not settled yet", f"{pairs} of {len(rules.ENDPOINT_SEEDS)} pairs run"
    difference, said = tables.paired("oar_g", own, base)
    return said + star(task, "oar_g", rules.BASELINE), difference


TASKS = ("graph", "asides")
"""Where it was asked whether OAR-G beats GRPO."""


@functools.cache
def answered() -> list[Any]:
    """All comparisons that were asked beforehand and have their pairs."""
    return asked_of.answered(ROWS)


@functools.cache
def halves() -> list[tuple[str, str, Any]]:
    """(Task, estimate, answer to the question of half of what perfect credit gains), of those that have all their pairs."""
    asked = [(task, arm, tables.half(ROWS, task, arm)) for task in rules.HALF_ASKED_ON for arm in rules.HALF_ASKED_OF]
    return [(task, arm, found) for task, arm, found in asked if found]


def whole_lead(task: str, method: str, over: str) -> tuple[int, Interval] | None:
    """How many pairs, and by how many points one arm ends above another; None where not all of their pairs have run."""
    runs = records.endpoint_runs(ROWS, task)
    pairs, interval = tables.lead(runs.get(method, {}), runs.get(over, {}))
    return None if interval is None or pairs < len(rules.OTHER_SEEDS) else (pairs, interval)


def answer_to(task: str, arm: str, other: str, stage: str) -> Any | None:
    """Of those `answered`."""
    key = (task, arm, other, stage)
    return next((one for one in answered() if (one.task, one.arm, one.other, one.stage) == key), None)


def star(task: str, arm: str, other: str, stage: str = "endpoint") -> str:
    """Behind an answer whose interval does not hold 0, but which cannot be told from chance once all that were asked are
    counted."""
    found = answer_to(task, arm, other, stage)
    if found is None or found.corrected < LEVEL:
        return ""
    lead = mean_interval(list(found.differences), bootstrap_from=math.inf)
    return "" if lead.low <= 0 <= lead.high else "\\*"


class Evidence(NamedTuple):
    """By how many points an arm ends above another, of how many pairs, and what that says."""

    lead: Interval
    pairs: int
    word: str
    asked: bool
    """Before its runs; else it was explored."""


def evidence(task: str, arm: str, other: str = rules.BASELINE, stage: str = "endpoint") -> Evidence | None:
    """None where not all pairs have run. The word of what was asked has its `star`."""
    if asked := answer_to(task, arm, other, stage):
        lead = mean_interval(list(asked.differences), bootstrap_from=math.inf)
        return Evidence(lead, len(asked.differences), _answer(asked, lead) + star(task, arm, other, stage), asked=True)
    found = whole_lead(task, arm, other) if stage == "endpoint" else None
    if found is None:
        return None
    pairs, lead = found
    return Evidence(lead, pairs, "above" if lead.low > 0 else "below" if lead.high < 0 else "not told apart", asked=False)


def _answer(one: Any, lead: Interval) -> str:
    half = [found.reached for task, arm, found in halves() if (task, arm) == (one.task, one.arm)]
    if half and (one.other, one.stage) == (rules.BASELINE, "endpoint"):
        return f"half of perfect credit's lead: {'yes' if half[0] else 'no'}"
    return str(rules.verdict(lead.low, lead.high))


@functools.cache
def asked_keys() -> set[tuple[str, str, str, str]]:
    """(Task, arm, other, stage) of all comparisons that were asked beforehand, run or not."""
    return {(one.task, one.arm, one.other, one.stage) for one in asked_of.questions(ROWS)}


def _half_figures(task: str, arm: str, one: Any) -> str:
    pairs, lead = tables.lead(*(records.endpoint_runs(ROWS, task)[name] for name in (arm, rules.BASELINE)))
    times = [
        f"{one.time:.2f} times the time of a run without its scoring",
        f"{tables.shown(one.step_time, '.2f')} of its steps",
    ]
    times += [] if math.isnan(one.copying_time) else [f"{one.copying_time:.2f} of these since its continuations copy"]
    told = f"{named(arm)} on {task} {lead:+.1f} of perfect credit's {one.perfect:+.1f}"
    return f"{told} ({pairs} pairs, p {one.p:.3g}, {', '.join(times)})"


def half_reached() -> tuple[str, str]:
    """Verdicts and figures of that question."""
    found = halves()
    if not found:
        return "not settled yet", "no estimate has all its pairs"
    verdicts = [f"{named(arm)} on {task} {'yes' if one.reached else 'no'}" for task, arm, one in found]
    figures = [_half_figures(*one) for one in found]
    return "; ".join(verdicts), "; ".join(figures)


def asked_leads(comparison: Any, stage: str = "endpoint", says: Callable[[float, float], str] = rules.verdict) -> Leads:
    """Of each of the others, with the `star` of its verdict."""
    found = tables.asked_leads(ROWS, comparison, stage, says)
    return {other: _starred(lead, comparison.task, comparison.arm, other, stage) for other, lead in found.items()}


def leads_asked(questions: Iterable[Any]) -> Mapping[tuple[str, str, str], Any]:
    """(Task, arm, other) -> the arm's lead over the other, with the `star` of its verdict."""
    return {(asked.task, asked.arm, other): lead for asked in questions for other, lead in asked_leads(asked).items()}


def _starred(lead: Any, task: str, arm: str, other: str, stage: str = "endpoint") -> Any:
    return lead._replace(verdict=lead.verdict + star(task, arm, other, stage))


def asked(comparison: Any, stage: str = "endpoint") -> tuple[str, str]:
    """Verdicts and figures of the question whether an arm ends above others (a `Comparison` of the rules)."""
    found = asked_leads(comparison, stage)
    if not any(lead.pairs for lead in found.values()):
        return "not settled yet", f"no pair on `{comparison.task}` has run"
    return _told({f"against {named(other)}": lead for other, lead in found.items()})


def greedily() -> tuple[str, str]:
    """Verdict and figures of the question whether a lead is more than a sharper policy."""
    pairs, interval = decoded.greedy_lead(ROWS)
    if interval is None:
        return "not settled yet", "no pair has run"
    sampled = records.endpoint_runs(ROWS, rules.GREEDY_TASK, "greedy")
    lead, _ = tables.paired(rules.SHARPENED, sampled[rules.SHARPENED], sampled[rules.BASELINE])
    word = rules.verdict(interval.low, interval.high) if pairs == len(rules.GREEDY_SEEDS) else "not settled yet"
    figures = f"{named(rules.SHARPENED)} minus GRPO {interval:+.1f} greedily, {lead} at temperature 1 ({pairs} pairs)"
    return f"{rules.GREEDY_TASK} {word}", figures


def each_asked(questions: Iterable[Any]) -> tuple[str, str]:
    """Verdicts and figures of questions of the same kind (each a `Comparison` of the rules)."""
    found = {
        f"{named(arm)} on {task}" if other == rules.BASELINE else f"{named(arm)} over {named(other)} on {task}": lead
        for (task, arm, other), lead in leads_asked(questions).items()
    }
    verdicts, figures = _told(found)
    return verdicts, figures or "no pair has run"


def of_levels() -> tuple[str, str] | None:
    """Verdicts and figures of the question whether the gate needs both levels; None where pairs are missing."""
    return _whole({f"against {named(arm)}": lead for arm, lead in asked_leads(rules.BOTH_LEVELS).items()})


def of_tau() -> tuple[str, str] | None:
    """Verdicts and figures of the question whether it matters little which tau is taken; None where pairs are missing."""
    leads = asked_leads(rules.STABLE_TAU, says=rules.same_verdict)
    return _whole({f"against {named(arm)}": lead for arm, lead in leads.items()})


def rate_leads() -> Leads:
    """Task -> how OAR-G's lead over GRPO changes at a higher rate."""
    return {
        task: _starred(tables.lead_at_higher_rate(ROWS, task), task, "oar_g_higher", asked_of.AT_TUNED_RATES)
        for task in rules.HIGHER
    }


def of_rate() -> tuple[str, str] | None:
    """Verdicts and figures of the question whether a higher rate suits OAR-G less; None where pairs are missing."""
    return _whole(
        {f"{task}, change of the lead at {rate(float(rules.HIGHER[task]))}": lead for task, lead in rate_leads().items()}
    )


def _whole(leads: Leads) -> tuple[str, str] | None:
    return None if any(lead.pairs < len(rules.OTHER_SEEDS) for lead in leads.values()) else _told(leads)


def _told(leads: Leads) -> tuple[str, str]:
    """Verdicts, and the figures of those that have pairs."""
    figures = [f"{name} {lead.lead} ({lead.pairs} pairs)" for name, lead in leads.items() if lead.pairs]
    words = [f"{name} {lead.verdict if lead.pairs else NOT_YET}" for name, lead in leads.items()]
    return "; ".join(words), "; ".join(figures)
