"""The first table of ../VERDICT.md: each question of the study of rules written before its runs (../settle), task by task."""

from __future__ import annotations

from typing import NamedTuple

from settled import NOT_YET, TASKS, asked_keys, evidence, rules

from oar_lightning.common.markdown import markdown

COLUMNS = (*TASKS[::-1], rules.AGAIN.task)


class Question(NamedTuple):
    """Whether an arm ends above another one. `again`: the task whose answer is of pairs made for it."""

    what: str
    arm: str
    other: str = rules.BASELINE
    again: str = ""
    stage: str = "endpoint"

    def stage_on(self, task: str) -> str:
        return "again" if task == self.again else self.stage


_SEARCHES, _SELDOM = "`turning_point`", "`turning_point`, searching in every eighth step"
QUESTIONS = {
    "After as many updates, minus GRPO": (
        Question("perfect credit, which is told which step went wrong", rules.PERFECT),
        Question("OAR-G", "oar_g", again=rules.AGAIN.task),
        Question("OAR-P, exact", "oar_p"),
        Question(f"{_SEARCHES}, ours, which lets the verifier judge greedy continuations", "turning_point"),
        Question(
            "`anchor_states`, ours, which needs no further run of the model", "anchor_states", again=rules.AT_NO_PASS.task
        ),
    ),
    "In the time of GRPO's 160 updates, minus GRPO": (
        Question(_SEARCHES, rules.SHORT),
        Question(_SELDOM, rules.SELDOM),
    ),
    "Minus GRPO with more updates, in the time that the method takes": (
        Question(_SEARCHES, "turning_point", rules.LONG),
        Question(_SELDOM, rules.SELDOM_LONG, rules.LONG),
        Question("`anchor_states`", rules.STATES_LONG, rules.LONG),
        Question("OAR-G", "oar_g", rules.AS_LONG_AS_OAR_G, again=rules.AGAIN.task),
    ),
    "Minus GRPO with ten completions a problem where the others have eight": (
        Question(_SEARCHES, "turning_point", "grpo_more"),
        Question("OAR-G", "oar_g", "grpo_more"),
    ),
    "Where both train on, with as many updates, minus GRPO": (
        Question("perfect credit", rules.PERFECT_LONG, rules.LONG),
        Question(_SEARCHES, rules.ESTIMATE_LONG, rules.LONG),
    ),
    "Minus the same scores on other tokens, each at its own tuned setting": (
        *(Question(f"`{asked.arm}`", asked.arm, other) for asked in rules.PLACES for other in asked.others),
        Question("OAR-G", "oar_g", "shuffled", again=rules.AGAIN.task),
    ),
    "OAR-G with both levels of its gate, minus itself with one": (
        Question("boosting alone", "oar_g", "oar_g_boost_only"),
        Question("suppressing alone", "oar_g", "oar_g_suppress_only"),
    ),
    "With greedy decoding, after as many updates, minus GRPO": (
        Question(f"`{rules.SHARPENED}`", rules.SHARPENED, stage="greedy"),
    ),
}
NOT_RUN = "not run"


def answers_table() -> str:
    """A row a question of which something was run or asked."""
    lines = [["points [95 %] (pairs): answer", *(f"`{task}`" for task in COLUMNS)]]
    for title, questions in QUESTIONS.items():
        lines.append([f"**{title}**", *[""] * len(COLUMNS)])
        for one in questions:
            cells = [cell(task, one.arm, one.other, one.stage_on(task)) for task in COLUMNS]
            lines += [[one.what, *cells]] if set(cells) != {NOT_RUN} else []
    return markdown(lines)


def cell(task: str, arm: str, other: str, stage: str) -> str:
    """The difference, of how many pairs, and its answer; `explored` where nobody had asked it; without all pairs `NOT_RUN`, or
    `NOT_YET` where it was asked."""
    found = evidence(task, arm, other, stage)
    if found is None:
        return NOT_YET if (task, arm, other, stage) in asked_keys() else NOT_RUN
    return f"{found.lead:+.1f} ({found.pairs}): {found.word if found.asked else 'explored'}"
