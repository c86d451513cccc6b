"""What README.md lays down: tasks, rates, arms and seeds, how a setting is chosen, and what counts as yes and no."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

_RATES = ("5e-5", "1e-4", "2e-4", "3e-4", "4.5e-4")
RATES = {"graph": ("5e-5", "7.5e-5", "1e-4", "1.5e-4", "2e-4"), "asides": _RATES, "long_answer": _RATES}
"""Task -> learning rates, the same for every arm."""

BASELINE = "grpo"
NO_GATE = ""
BETAS = ("2.0", "1.0")
"""Strengths of OAR's gate: the paper's, and a weaker one."""
PENALTY, PENALTIES = "entropy_penalty", ("-0.1", "-0.3")
"""GRPO that is paid for less entropy, whatever the answer is; and its coefficients."""
UPDATES = 160
SHORT, SELDOM = "turning_point_short", "turning_point_seldom"
"""`turning_point`, and the same that searches in every eighth step, in the time of GRPO's `UPDATES`."""
LONG = "grpo_longer"
"""GRPO in the time of `turning_point`'s `UPDATES`."""
PERFECT_LONG, ESTIMATE_LONG = "oracle_longer", "turning_point_longer"
"""Perfect credit and `turning_point` with as many updates as `LONG`."""
SELDOM_LONG = "turning_point_seldom_longer"
"""`SELDOM` in the time of `LONG`."""
STATES_LONG = "anchor_states_longer"
"""`anchor_states` in the time of `LONG`."""
AS_LONG_AS_OAR_G = "grpo_in_oar_g_time"
"""GRPO in the time of OAR-G's `UPDATES`."""
MORE = {"asides": 291, "graph": 302}
"""Task -> the updates of GRPO that take the time of `turning_point`'s `UPDATES`."""
OTHER_UPDATES = {
    SHORT: {"asides": 88, "graph": 85},
    SELDOM: {"asides": 139, "graph": 133},
    LONG: MORE,
    PERFECT_LONG: MORE,
    ESTIMATE_LONG: MORE,
    SELDOM_LONG: {"asides": 253},
    STATES_LONG: {"asides": 285},
    AS_LONG_AS_OAR_G: {"long_answer": 203},
}
"""Arm and task -> its updates, of arms that do not have `UPDATES`."""

ONE_CHANGED = {
    "oar_g_tau_0.3": ("gate.tau=0.3",),
    "oar_g_tau_0.7": ("gate.tau=0.7",),
    "oar_g_boost_only": ("gate.mode=boost_only",),
    "oar_g_suppress_only": ("gate.mode=suppress_only",),
}
"""OAR-G with one thing of its gate changed: arm -> its overrides."""
HIGHER = {"asides": "4.5e-4", "graph": "2e-4"}
"""Task -> the highest of `RATES`, above what tuning chose for GRPO and for OAR-G."""
AT_HIGHER_RATE = {"grpo_higher": BASELINE, "oar_g_higher": "oar_g"}
"""Arm -> the one that it is but for that rate."""
BORROWED = {**dict.fromkeys(ONE_CHANGED, "oar_g"), **AT_HIGHER_RATE}
"""Arm -> the one whose tuned setting it has, where it has no tuning of its own."""
ONLY_ON = {**OTHER_UPDATES, **dict.fromkeys(ONE_CHANGED, ("asides",)), **dict.fromkeys(AT_HIGHER_RATE, tuple(HIGHER))}
"""Arm -> its tasks, where these are not all."""

_SEARCHES, _SEARCHES_SELDOM = ("+experiment=turning_point",), ("scorer.search_every=8", "scorer.guess_above=0")
_STATES = ("+experiment=anchor_states",)
_STATES_INSIDE = ("scorer@scorer.inner=anchor_states", "~scorer.absolute", "scorer.inner.absolute=true")
ARMS: dict[str, tuple[str, ...]] = {
    BASELINE: ("+experiment=grpo",),
    "oar_g": ("+experiment=oar_g",),
    "oar_g_last": ("+experiment=oar_g", "scorer.probe.name=last"),
    "oar_g_joint": ("+experiment=oar_g", "scorer.probe.name=answer_joint"),
    "oar_g_in_sharp_gate": ("+experiment=oar_g", "gate.threshold=absolute", "gate.tau=0.5"),
    "grpo_more": ("+experiment=grpo", "update.group_size=10"),
    "grpo_double": ("+experiment=grpo", "update.group_size=16"),
    **dict.fromkeys((LONG, AS_LONG_AS_OAR_G), ("+experiment=grpo",)),
    "oar_p": ("+experiment=oar_p",),
    "total_effect": ("+experiment=total_effect",),
    "total_effect_fast": ("+experiment=total_effect_fast",),
    "vineppo": ("+experiment=vineppo", "scorer/segments=task_steps", "scorer.samples=2"),
    "information_gain": ("+experiment=information_gain",),
    "eighty_twenty": ("+experiment=eighty_twenty",),
    "random": ("+experiment=oar_g", "scorer=random"),
    "shuffled": ("+experiment=oar_g", "scorer=shuffled"),
    "position": ("+experiment=oar_g", "scorer=position"),
    **dict.fromkeys(("anchor_states", STATES_LONG), _STATES),
    "anchor_states_shuffled": (*_STATES, "scorer=shuffled", *_STATES_INSIDE),
    "turning_point": _SEARCHES,
    "turning_point_shuffled": (*_SEARCHES, "scorer=shuffled", "scorer@scorer.inner=turning_point"),
    **dict.fromkeys((SHORT, ESTIMATE_LONG), _SEARCHES),
    **dict.fromkeys((SELDOM, SELDOM_LONG), (*_SEARCHES, *_SEARCHES_SELDOM)),
    "oracle": ("+experiment=oracle",),
    PERFECT_LONG: ("+experiment=oracle",),
    "oracle_in_oars_gate": ("+experiment=oar_g", "scorer=oracle"),
    PENALTY: ("+experiment=grpo",),
    **{arm: ("+experiment=oar_g", *changes) for arm, changes in ONE_CHANGED.items()},
    **{arm: (f"+experiment={source}",) for arm, source in AT_HIGHER_RATE.items()},
}
WITHOUT_OARS_GATE = (
    *(BASELINE, "grpo_more", "grpo_double", LONG, AS_LONG_AS_OAR_G),
    *("vineppo", "information_gain", "eighty_twenty", "oracle", PERFECT_LONG),
)
"""Arms with no gate, or one of their own: they have twice the tuning seeds, so that every arm has 20 tuning runs."""

ENDPOINT = (BASELINE, "oar_g")
TUNING_SEEDS = (50, 51, 52, 53)
ENDPOINT_SEEDS = tuple(range(100, 124))
OTHER_SEEDS = ENDPOINT_SEEDS[:12]
MARGIN = 2.0
"""Points. A lead whose interval ends below it is too small to matter here."""


class Comparison(NamedTuple):
    """It is asked on a task whether an arm ends above each of the others."""

    task: str
    arm: str
    others: tuple[str, ...]


PROBES = Comparison("long_answer", "oar_g", ("oar_g_last", "oar_g_joint"))
"""Whether OAR-G's scores are best read from the mean over the answer."""
PLACES = tuple(Comparison("asides", arm, (f"{arm}_shuffled",)) for arm in ("turning_point", "anchor_states"))
"""Whether it matters on which tokens the weight lies, or only on how few."""
MISPLACED = tuple(arm for asked in PLACES for arm in asked.others)
TIMELY = (
    *(Comparison(task, arm, (BASELINE,)) for arm in (SHORT, SELDOM) for task in OTHER_UPDATES[arm]),
    *(Comparison(task, "turning_point", (LONG,)) for task in OTHER_UPDATES[LONG]),
    *(Comparison(task, arm, (LONG,)) for arm in (SELDOM_LONG, STATES_LONG) for task in OTHER_UPDATES[arm]),
)
"""Whether an estimate's lead is more than its time buys."""
LASTING = tuple(Comparison(task, arm, (LONG,)) for arm in (PERFECT_LONG, ESTIMATE_LONG) for task in MORE)
"""Whether a lead is left where both train on."""

BOTH_LEVELS = Comparison("asides", "oar_g", ("oar_g_boost_only", "oar_g_suppress_only"))
"""Whether the gate needs both of its levels."""
STABLE_TAU = Comparison("asides", "oar_g", ("oar_g_tau_0.3", "oar_g_tau_0.7"))
"""Whether it matters little which tau of the paper's range is taken; OAR-G's own is 0.4."""

AGAIN = Comparison("long_answer", "oar_g", (BASELINE, AS_LONG_AS_OAR_G, "shuffled", "random"))
"""Whether OAR-G leads where answers have several tokens, of pairs that nobody had seen when that was asked; whether its lead
is more than its time buys; and whether it matters which tokens get the weight."""
AT_NO_PASS = Comparison("asides", "anchor_states", (BASELINE,))
"""Whether an estimate that needs no further run of the model leads, of pairs that nobody had seen when that was asked."""
AGAIN_SEEDS = tuple(range(300, 324))
"""Of both."""

PERFECT = "oracle"
HALF_ASKED_OF = {"anchor_states": 0.01, "turning_point": 0.005}
"""Estimates that are asked for half of perfect credit's lead -> below which p of their own lead."""
HALF_ASKED_ON = ("graph", "asides")
MOST_TIME = 2.0
"""The time of a run of theirs, of the same without its scoring, which is what GRPO does, at most."""
TIMED_SEEDS = ENDPOINT_SEEDS[:3]
"""Of runs that are made for their seconds alone, where those of the endpoint were made before these were kept."""


GREEDY_TASK, SHARPENED, GREEDY_ARMS = "graph", "turning_point", (BASELINE, "turning_point", PENALTY, "oracle")
"""Where it is asked whether the lead of an arm is more than a sharper policy: of policies that decode greedily, too."""
GREEDY_SEEDS = tuple(range(200, 212))


class Setting(NamedTuple):
    """`beta`: the strength of OAR's gate, or of `PENALTY` the coefficient of the entropy."""

    lr: str
    beta: str


def updates(task: str, arm: str) -> int:
    """Of a run.

    Raises:
        ValueError: for a task that the arm is not run on, as where steps were not timed.
    """
    if task not in (tasks := ONLY_ON.get(arm, RATES)):
        raise ValueError(f"{arm} is an arm of {', '.join(tasks)}, not of {task}")
    return OTHER_UPDATES[arm][task] if arm in OTHER_UPDATES else UPDATES


def strengths(arm: str) -> tuple[str, ...]:
    if arm in WITHOUT_OARS_GATE:
        return (NO_GATE,)
    return PENALTIES if arm == PENALTY else BETAS


def settings_of(task: str, arm: str) -> list[Setting]:
    """Those that are tried in tuning."""
    if arm in BORROWED:
        return []
    return [Setting(lr, beta) for lr in RATES[task] for beta in strengths(arm)]


STAGES = {
    "endpoint": "the accuracy at temperature 1",
    "time": "the seconds of scoring alone count",
    "greedy": "the accuracy with greedy decoding, too",
    "again": "the accuracy at temperature 1, of seeds of its own",
    "copying": "the seconds of steps alone count, since greedy continuations copy from each other",
}
"""What is run after tuning."""


def seeds_of(stage: str, arms: Collection[str]) -> tuple[int, ...]:
    """Those of a stage after tuning."""
    if stage == "endpoint":
        return ENDPOINT_SEEDS if set(arms) <= set(ENDPOINT) else OTHER_SEEDS
    return {"time": TIMED_SEEDS, "greedy": GREEDY_SEEDS, "again": AGAIN_SEEDS, "copying": TIMED_SEEDS}[stage]


def borrowed(task: str, arm: str, setting: Setting | None) -> Setting | None:
    """The setting of an arm of `BORROWED`, from that of the arm that it is taken from; None on a task that it is not run on."""
    if task not in ONLY_ON[arm]:
        return None
    return setting._replace(lr=HIGHER[task]) if setting and arm in AT_HIGHER_RATE else setting


def tuning_seeds(arm: str) -> tuple[int, ...]:
    return TUNING_SEEDS if arm in WITHOUT_OARS_GATE else TUNING_SEEDS[:2]


def verdict(low: float, high: float) -> str:
    """Of an interval of the difference in points, by the rule of README.md."""
    if low > 0:
        return "yes"
    return "no" if high < MARGIN else "not settled"


def same_verdict(low: float, high: float) -> str:
    """Whether two arms end within `MARGIN` of each other, of the interval of their difference."""
    if low > -MARGIN and high < MARGIN:
        return "yes"
    return "no" if low >= MARGIN or high <= -MARGIN else "not settled"


def falls_verdict(low: float, high: float) -> str:
    """Whether a lead is smaller elsewhere, of the interval of its change."""
    if high < 0:
        return "yes"
    return "no" if low > -MARGIN else "not settled"
